"""What an edit will do to the pods, by the rules of Kthena's own controller; nothing here reads or writes a cluster."""

from impact.controller import Capacity, Prediction, predict, steps

__all__ = ["Capacity", "Prediction", "predict", "steps"]
