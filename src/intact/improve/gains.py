"""What a pass gained at one place; the plan keeps the records (`intact.plan.gains`)."""

from intact.plan.gains import Gain, Report, unreported

__all__ = ["Gain", "Report", "unreported"]
