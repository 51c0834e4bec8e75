"""Utilities shared by all subpackages: arrays, files, locks, memory, errors."""
