"""The log of trials: one line of JSON each, in the format of [tvm]."""
