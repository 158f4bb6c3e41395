"""vLLM-Ascend's own settings, ``additionalConfig``."""
