"""Ties each relation to the model: its transitions and its states, field by field.

No relation is stated here.
"""
