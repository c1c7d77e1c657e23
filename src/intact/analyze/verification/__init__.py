"""What a runtime computes, against the integers of the plan."""
