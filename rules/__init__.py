"""What a stack file must fulfil beyond its shape: one small function per rule, all findings collected and shown together."""

from rules.check import RULES, check, read, require_context
from rules.finding import Finding, StackError, refuse_errors
from rules.source import Source

__all__ = ["RULES", "Finding", "Source", "StackError", "check", "read", "refuse_errors", "require_context"]
