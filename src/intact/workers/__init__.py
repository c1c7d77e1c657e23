"""Work that is done in parallel, or on other machines.

`job.py`: the one protocol of it: a job is saved, loaded and opened by workers, and asked; what they
answer is merged by whoever asked. `pool.py`: the workers of a job, whose lost work is done again;
`processes.py` and `ray_.py` start them. `threads.py`: the same for threads of this process, which
need no job.
"""
