// Package leadership runs two replicas of every controller and takes leaders away: killed at random moments of a
// rollout, asked to stop, and paused until another leads and then woken. FAULTS=all runs every plan many times.
package leadership
