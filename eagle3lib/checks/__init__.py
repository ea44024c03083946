"""Checks: evidence in, findings out; one module a stage of the verdict.

A check that cannot decide returns a note whose title starts with "Cannot tell" and says what would decide it.
"""
