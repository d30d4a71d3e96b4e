"""The simulator against queueing theory: single servers and server pools whose mean waits have closed forms."""
