"""Waiting for another process. Standard library only."""
import sys, time

TICK = 0.02  # seconds between two checks


def wait_until(condition, patience, tick=TICK):
    """Returns the value of the condition as soon as it is true, or after `patience` seconds."""
    end = time.monotonic() + patience
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(tick)
    return holds


def await_that(condition, what, patience):
    """Returns when the condition holds; ends the test if it does not within `patience` seconds."""
    if not wait_until(condition, patience):
        sys.exit(f"waited {patience} s in vain: {what}")
