"""What an edit will do to the pods, by the rules of Kthena's own controller; nothing here reads or writes a cluster."""

from impact.controller import Capacity, Change, Prediction, churns, predict, steps
from impact.npus import free, requests

__all__ = ["Capacity", "Change", "Prediction", "churns", "free", "predict", "requests", "steps"]
