"""What a stack file must fulfil beyond its shape: one small function per rule, all findings collected and shown together."""

from rules.check import CHECKS, check, read, read_file, require_context, require_prefix
from rules.finding import RULES, Check, Finding, StackError, refuse_errors
from rules.recipe import deployment
from rules.source import Source, settings

__all__ = [
    "CHECKS",
    "RULES",
    "Check",
    "Finding",
    "Source",
    "StackError",
    "check",
    "deployment",
    "read",
    "read_file",
    "refuse_errors",
    "require_context",
    "require_prefix",
    "settings",
]
