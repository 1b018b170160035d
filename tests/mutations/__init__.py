"""Mutation testing: changes the code of one room in one place at a time, and sees whether a test fails.

========== =========================================================================
rooms      what a room is: the code to change and the tests that cover it (rooms.toml)
mutants    the mutants of a room, as a reviewer reads them; which are noise; samples
running    mutmut itself: makes the mutants, runs their tests. The one user of mutmut
plugin     inside pytest: fast tests first, nothing waits for ever, who killed it
scores     verdicts and the score with its interval
pages      one page for each room, with the reasons that people wrote
========== =========================================================================

``make mutations ROOM=engine SAMPLE=200 SEED=1``; see docs/testing.md.
"""
