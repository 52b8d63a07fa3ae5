"""What reaches a worker on another machine, and notices when that machine is gone."""
