"""A plan as a Relax module on integers for TVM: HAGO's realization."""
