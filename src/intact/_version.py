"""The version of the package: that of its files, and of what pip installs."""

__version__ = "0.1.0"
