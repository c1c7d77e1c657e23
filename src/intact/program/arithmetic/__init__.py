"""How a target computes with codes: what the integer engine runs and integer formats write down."""
