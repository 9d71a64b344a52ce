"""Parsers, a module for each format."""
