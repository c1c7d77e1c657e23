"""Tengine's tables of scales."""
