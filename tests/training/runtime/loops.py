"""Event loops of several processes, taken turn by turn in one."""


def turns(*processes, count=60, until=lambda: False):
    for _ in range(count):
        for process in processes:
            process.turn()
        if until():
            return
