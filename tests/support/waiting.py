"""Waiting for something that another process does. Standard library only."""
import sys, time

TICK = 0.02  # seconds between two looks


def wait_until(condition, patience, tick=TICK):
    """Returns the value of the condition as soon as it is true, or after `patience` seconds."""
    end = time.monotonic() + patience
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(tick)
    return holds


def await_that(condition, what, patience):
    """Returns when the condition holds; ends the test after `patience` seconds in vain."""
    if not wait_until(condition, patience):
        sys.exit(f"waited {patience} s in vain: {what}")
