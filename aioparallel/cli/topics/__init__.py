"""``aioparallel topics``: list, describe, create and delete topics.

``commands``  the commands and their options
``managing``  what they do
"""
