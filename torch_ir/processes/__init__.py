"""Child processes: the only room that starts one.

A child is a fork of this process (`forked_child`), a program that runs once (`program`), or a Python process that
replies to requests (`line_server`). `process_end` describes how a process ended; `resource_limits` bounds its memory.
"""
