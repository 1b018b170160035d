"""``aioparallel dlq``: list and show dead letters, replay them, or drop them.

Kafka cannot delete single records of a log. A consumer group remembers which dead letters are settled (replayed or
dropped): its committed offset and offset map say so for each partition.

``commands``    the four commands and their options
``selecting``   which letters are meant
``looking``     list and show; ``printing`` formats letters
``settling``    replay and drop
``dead_letter_topic``  connects to the topic and reads its offsets and the group's marks
``marks``       which letters are settled, and how that is committed
``holding``     lets one process at a time settle letters
``planning``    the first pass of replay and drop: what will be done
``replaying``   the second pass of replay
``whole_records``  completes letters that lack a part of their record
"""
