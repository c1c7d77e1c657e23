"""The commands: each calls one public function and prints what it returns."""
