"""Parts of reading: the file, its operators, the float graph, the configs."""
