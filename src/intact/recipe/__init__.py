"""Recipes: every option declared once, and files of options."""
