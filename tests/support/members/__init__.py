"""Members of a group in processes of their own, in trouble.

::

    restless.py    killed, restarted, joining and leaving
    freezing.py    one that stops itself, and the input it needs to come to that
    rolling.py     replaced by members of another revision, and back
"""
