"""Which table is written where and how, in which spans, or held: decided before anything is written."""
