"""How each operator is written as layers of ncnn: one file a family."""
