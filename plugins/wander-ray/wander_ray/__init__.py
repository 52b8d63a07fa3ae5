"""Play evaluations and suites on a Ray cluster: a task for each shard, and one record in the end.

Ray places the tasks, and starts a task again if its node or process died. Such a shard continues with what
its folder has. One actor holds what the shards share: the concurrency and pace of each endpoint, budgets,
progress, and whether to stop. Ray itself is imported when a cluster is connected.
"""
