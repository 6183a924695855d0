"""Importers, one per public trace format."""
