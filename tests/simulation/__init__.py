"""Seeded chaos: members, faults and handlers drawn from one number, in virtual time, and what must hold all the while.

``python -m tests.simulation --seed N`` plays one seed and tells the whole story; ``--seeds 10000`` plays many.
"""
