"""From the steps of a program to the operators of a TFLite file."""
