"""Measurements: the machine they were made on, speed, memory, accuracy."""
