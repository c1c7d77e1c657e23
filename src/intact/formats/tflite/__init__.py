"""TensorFlow Lite files: writing, reading and running them."""
