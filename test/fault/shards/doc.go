// Package shards plays the fault scenarios of sharded controllers: replicas that come, go, are killed and paused, and
// other numbers of shards, while rollouts under rules go on in a dozen namespaces. An observer checks the suite's
// promises, and the API server's audit log shows that the writes of a namespace come from one replica at a time.
package shards
