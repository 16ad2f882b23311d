package monitoring

import "slices"

// Dashboards are all dashboards: the fleet first, then one for each component.
func Dashboards() []Dashboard {
	return []Dashboard{fleet(), collaSets(), rules(), lifecycles(), backends(), jobDashboard(), decorationDashboard(),
		admission()}
}

func fleet() Dashboard {
	return Dashboard{
		ID: "kuperator-fleet", Title: "Kuperator / Fleet",
		Description: "Operations under way in the cluster, what they wait for, and the health of the suite.",
		Object:      "phase", Of: "kuperator_lifecycle_namespace_operations",
		Rows: []Row{
			{Title: "Who needs me", Panels: []Panel{
				{
					Title: "Who needs me",
					Description: "Every alert whose condition holds now, and what it is about. " +
						"The runbook of that name has what to do.",
					Unit: unitShort, Columns: []string{"severity", "alert", "who"},
					Needs:   "something that is wrong",
					Queries: []Query{{needed(), "{{alert}} {{who}}"}},
				},
			}},
			{Title: "Now", Panels: []Panel{
				graph("Operations under way", "Operations on Pods, in all phases.", unitShort,
					Query{`sum(kuperator_lifecycle_operations)`, "operations"}).stat(),
				graph("Oldest out of service",
					"Longest time of an operation in its current phase. PreCheck is not included, because the Pod serves "+
						"in it.",
					unitSeconds,
					Query{`max(kuperator_lifecycle_oldest_phase_seconds{phase!="PreCheck"})`, "oldest"}).stat().alarm(1800),
				graph("Pods blocked by rules",
					"Pods that wait for a rule, counted once for each rule that blocks them.",
					unitShort, Query{`sum(kuperator_podtransitionrule_pods{count="blocked"})`, "blocked"}).stat(),
				graph("CollaSets that need attention", "Halted, stalled or overdue.", unitShort,
					Query{`sum(kuperator_collaset_sets{state=~"halted|stalled|overdue"})`, "CollaSets"}).stat().alarm(1),
				graph("Frozen namespaces",
					"Namespaces that are frozen by their own annotation. A frozen cluster counts as 1,000.",
					unitShort,
					Query{`max(kuperator_lifecycle_frozen_namespaces) + 1000 * max(kuperator_lifecycle_cluster_frozen)`,
						"frozen"}).stat().alarm(1000),
				graph("Components that answer", "Components with at least one replica that Prometheus scrapes.", unitShort,
					Query{`count(sum by (job) (up{` + jobs + `}) > 0)`, "components"}).stat(),
			}},
			{Title: "Operations", Collapsed: true, Panels: []Panel{
				graph("By phase",
					"Operations under way, by phase. Growth in Preparing or Completing means that they wait for traffic, "+
						"growth in PreCheck that they wait for rules.",
					unitShort, Query{`sum by (phase) (kuperator_lifecycle_operations)`, "{{phase}}"}),
				graph("By what they wait for", "Reasons, as kubectl kuperator why shows them for each Pod.", unitShort,
					Query{`sum by (reason) (kuperator_lifecycle_waiting_operations)`, "{{reason}}"}),
				graph("Oldest, by namespace and phase", "Longest time of an operation in its current phase.", unitSeconds,
					Query{`max by (namespace, phase) (kuperator_lifecycle_namespace_oldest_phase_seconds{` + selected +
						`, phase=~"$workload"})`,
						"{{namespace}} {{phase}}"}).alarm(1800).needs("an operation under way"),
				graph("Time out of service",
					"Median and 95th percentile of the time that operations were in a phase, when they leave it.",
					unitSeconds, Query{quantile(0.5, "phase", "kuperator_lifecycle_phase_age_seconds_bucket"), "{{phase}} 50 %"},
					Query{quantile(0.95, "phase", "kuperator_lifecycle_phase_age_seconds_bucket"),
						"{{phase}} 95 %"}).needs("an operation that left a phase in the last minutes"),
			}},
			{Title: "The suite", Collapsed: true, Panels: []Panel{
				graph("Replicas and leaders",
					"Replicas that are scraped, and how many of them are leaders: 1 is expected. webhook-server has no "+
						"leader.",
					unitShort, Query{`sum by (job) (up{` + jobs + `})`, "{{job}} replicas"},
					Query{`sum by (job) (leader_election_master_status{` + jobs + `})`, "{{job}} leaders"}),
				graph("Versions",
					"Replicas by component and version. There are two versions of one component only during an upgrade.",
					unitShort, Query{`count by (component, version) (kuperator_build_info)`, "{{component}} {{version}}"}),
				graph("Writes to the API server", "By component, including events and Leases.", unitPerSec,
					Query{`sum by (job) (rate(kuperator_api_writes_total[$__rate_interval]))`, "{{job}}"}),
				graph("Writes that failed",
					"By component and result. A few conflicts are usual; they are retried with a new decision.",
					unitPerSec,
					Query{`sum by (job, result) (rate(kuperator_api_writes_total{result!="done"}[$__rate_interval]))`,
						"{{job}} {{result}}"}),
				graph("Reconcile errors", "Reconciles that failed and are retried, by controller.", unitPerSec,
					Query{`sum by (job, controller) (rate(controller_runtime_reconcile_errors_total{` + jobs + `}[$__rate_interval]))`,
						"{{job}} {{controller}}"}),
				graph("Waits for the cache",
					"Reconciles deferred because the cache does not show an own write yet, and the longest current wait.",
					unitShort,
					Query{`sum by (job) (rate(kuperator_stale_cache_waits_total[$__rate_interval]))`, "{{job}} waits/s"},
					Query{`max by (job) (kuperator_stale_cache_oldest_wait_seconds)`, "{{job}} oldest, s"}),
				graph("Memory", "Resident memory, by component and replica.", unitBytes,
					Query{`process_resident_memory_bytes{` + jobs + `}`, "{{job}} {{instance}}"}),
				graph("CPU", "Cores in use, by component and replica.", unitShort,
					Query{`rate(process_cpu_seconds_total{` + jobs + `}[$__rate_interval])`, "{{job}} {{instance}}"}),
			}},
		},
	}
}

func collaSets() Dashboard {
	one := `kuperator_collaset_replicas{` + selected + `, collaset=~"$workload"`
	return Dashboard{
		ID: "kuperator-collaset", Title: "Kuperator / CollaSet",
		Description: "CollaSets, their Pods and rollouts, and collaset-controller.",
		Object:      "collaset", Of: "kuperator_collaset_state",
		Rows: []Row{
			{Title: "All CollaSets", Panels: []Panel{
				graph("By state", "Each CollaSet counts once. Halted, stalled and overdue CollaSets need attention.", unitShort,
					Query{`sum by (state) (kuperator_collaset_sets)`, "{{state}}"}),
				graph("Pods", "Pods of all CollaSets, by counter of their status.", unitShort,
					Query{`sum by (count) (kuperator_collaset_pods)`, "{{count}}"}),
				graph("Blocked Pods", "Pods by the reasons of status.blockers.", unitShort,
					Query{`sum by (reason) (kuperator_collaset_blocked_pods)`, "{{reason}}"}),
				graph("Need attention", "CollaSets that are halted, stalled or overdue, by name.", unitShort,
					Query{`kuperator_collaset_state{` + selected + `, collaset=~"$workload", state=~"halted|stalled|overdue"}`,
						"{{namespace}}/{{collaset}} {{state}}"}).alarm(1).needs("a CollaSet that is halted, stalled or overdue"),
			}},
			{Title: "Chosen CollaSets", Panels: []Panel{
				graph("Rollout", "Share of Pods at the updated revision.", unitRatio,
					Query{`sum by (namespace, collaset) (` + one + `, count="updated"}) / (sum by (namespace, collaset) (` + one +
						`, count="desired"}) > 0)`,
						"{{namespace}}/{{collaset}}"}),
				graph("Available of desired", "Share of the desired Pods that are available.", unitRatio,
					Query{`sum by (namespace, collaset) (` + one + `, count="available"}) / (sum by (namespace, collaset) (` + one +
						`, count="desired"}) > 0)`,
						"{{namespace}}/{{collaset}}"}),
				graph("Operating", "Pods in an update or scale-in.", unitShort,
					Query{`sum by (namespace, collaset) (` + one + `, count="operating"})`, "{{namespace}}/{{collaset}}"}),
				graph("Terminating", "Terminating Pods.", unitShort,
					Query{`sum by (namespace, collaset) (` + one + `, count="terminating"})`, "{{namespace}}/{{collaset}}"}),
			}},
			{Title: "collaset-controller", Panels: append([]Panel{
				graph("Actions", "Writes by action. An update in place has the actions begin, change and finish.", unitPerSec,
					Query{`sum by (action) (rate(kuperator_collaset_actions_total[$__rate_interval]))`, "{{action}}"}),
				graph("In flight",
					"Pods in an update in place whose next step is the suite's, and CollaSets with Pods that wait until "+
						"there are fewer.",
					unitShort, Query{`sum(kuperator_collaset_in_flight_pods)`, "Pods in flight"},
					Query{`sum(kuperator_collaset_waiting_sets)`, "CollaSets that wait"}),
				graph("Actions that failed",
					"Conflicts are retried with a new decision. Failures are retried, and status has the error.",
					unitPerSec,
					Query{`sum by (action, result) (rate(kuperator_collaset_actions_total{result!="done"}[$__rate_interval]))`,
						"{{action}} {{result}}"}),
				graph("Time to decide",
					"99th percentile of the time of a decision: on a whole CollaSet, and on the next step of one Pod.",
					unitSeconds,
					Query{quantile(0.99, "of", "kuperator_collaset_decide_seconds_bucket"),
						"{{of}} 99 %"}).needs("a decision in the last minutes"),
			}, controllerPanels("collaset-controller")...)},
		},
	}
}

func rules() Dashboard {
	of := func(metric string) string {
		return "kuperator_podtransitionrule_" + metric + `{` + selected + `, rule=~"$workload"}`
	}
	return Dashboard{
		ID: "kuperator-podtransitionrule", Title: "Kuperator / PodTransitionRule",
		Description: "Rules, their budgets, the Pods that wait for them, and podtransitionrule-controller.",
		Object:      "rule", Of: "kuperator_podtransitionrule_desired_pods",
		Rows: []Row{
			{Title: "All rules", Panels: []Panel{
				graph("By state",
					"Stalled rules must be corrected. The webhook of an unreachable rule does not answer.",
					unitShort, Query{`sum by (state) (kuperator_podtransitionrule_rules)`, "{{state}}"}),
				graph("Blocked Pods", "Pods that wait for a rule, by the kind of check.", unitShort,
					Query{`sum by (reason) (kuperator_podtransitionrule_waiting_pods)`, "{{reason}}"}),
				graph("Pods", "Pods of all rules, by counter of their status.", unitShort,
					Query{`sum by (count) (kuperator_podtransitionrule_pods)`, "{{count}}"}),
				graph("Frozen", "Namespaces with rules in which no new grants are given.", unitShort,
					Query{`kuperator_podtransitionrule_frozen{` + selected + `}`,
						"{{namespace}}"}).needs("a frozen namespace with a rule"),
			}},
			{Title: "Chosen rules", Panels: []Panel{
				graph("Budget in use",
					"Pods out of service as a share of the rule's budget. At 100 % the next Pod waits.",
					unitRatio, Query{of("unavailable_pods") + " / (" + of("budget_pods") + " > 0)", "{{namespace}}/{{rule}}"}),
				graph("Budget", "Pods that may be out of service at the same time, and Pods that are.", unitShort,
					Query{of("budget_pods"), "{{namespace}}/{{rule}} allowed"},
					Query{of("unavailable_pods"), "{{namespace}}/{{rule}} unavailable"}),
				graph("Granted and blocked", "Pods with a grant, and Pods that wait for one.", unitShort,
					Query{of("granted_pods"), "{{namespace}}/{{rule}} granted"},
					Query{of("blocked_pods"), "{{namespace}}/{{rule}} blocked"}),
				graph("Available of desired",
					"Share of the rule's desired Pods that are in service and not granted.",
					unitRatio, Query{of("available_pods") + " / (" + of("desired_pods") + " > 0)", "{{namespace}}/{{rule}}"}),
			}},
			{Title: "Webhooks of rules", Panels: []Panel{
				graph("Requests", "Requests to the servers of webhook rules, by result.", unitPerSec,
					Query{`sum by (namespace, rule, result) (rate(kuperator_rule_webhook_requests_total{` + selected +
						`, rule=~"$workload"}[$__rate_interval]))`,
						"{{namespace}}/{{rule}} {{result}}"}).needs("a webhook rule that was asked about Pods"),
				graph("Time of requests", "Median and 99th percentile of the time of a request.", unitSeconds,
					Query{quantile(0.5, "", "kuperator_rule_webhook_request_seconds_bucket"), "50 %"},
					Query{quantile(0.99, "", "kuperator_rule_webhook_request_seconds_bucket"),
						"99 %"}).needs("a request in the last minutes"),
				graph("In flight", "Requests that have not been answered yet.", unitShort,
					Query{`sum(kuperator_rule_webhook_requests_in_flight)`, "requests"}),
				graph("Passed without an answer",
					"Pods that passed although the request to the server failed (failurePolicy Ignore).",
					unitPerSec,
					Query{`sum by (namespace, rule) (rate(kuperator_rule_webhook_ignored_failures_total{` + selected +
						`, rule=~"$workload"}[$__rate_interval]))`,
						"{{namespace}}/{{rule}}"}).needs("a webhook rule that was asked about Pods"),
			}},
			{Title: "podtransitionrule-controller", Panels: append([]Panel{
				graph("Time to decide", "Median and 99th percentile of the time of a decision on a namespace.", unitSeconds,
					Query{quantile(0.5, "", "kuperator_podtransitionrule_decide_seconds_bucket"), "50 %"},
					Query{quantile(0.99, "", "kuperator_podtransitionrule_decide_seconds_bucket"),
						"99 %"}).needs("a decision in the last minutes"),
				graph("Conflicts and notes",
					"Writes refused because the rule had changed, and annotations written to Pods that have waited for long.",
					unitPerSec, Query{`sum(rate(kuperator_podtransitionrule_conflicts_total[$__rate_interval]))`, "conflicts"},
					Query{`sum by (result) (rate(kuperator_podtransitionrule_notes_total[$__rate_interval]))`,
						"notes {{result}}"}),
			}, controllerPanels("podtransitionrule-controller")...)},
		},
	}
}

func lifecycles() Dashboard {
	return Dashboard{
		ID: "kuperator-lifecycle", Title: "Kuperator / Pod lifecycle",
		Description: "Phases of operations, and lifecycle-controller.",
		Object:      "phase", Of: "kuperator_lifecycle_namespace_operations",
		Rows: []Row{
			{Title: "Operations", Panels: []Panel{
				graph("Under way, by namespace and phase", "Namespaces without operations have no series.", unitShort,
					Query{`sum by (namespace, phase) (kuperator_lifecycle_namespace_operations{` + selected + `, phase=~"$workload"})`,
						"{{namespace}} {{phase}}"}).needs("an operation under way"),
				graph("Oldest, by phase", "Longest time of an operation in the phase.", unitSeconds,
					Query{`max by (phase) (kuperator_lifecycle_oldest_phase_seconds)`, "{{phase}}"}),
				graph("Past their deadline", "By phase, type and policy. Deadlines are set by flags or annotations.", unitShort,
					Query{`sum by (phase, type, policy) (kuperator_lifecycle_overdue_operations)`,
						"{{phase}} {{type}} {{policy}}"}).alarm(1).needs("an operation past its deadline"),
				graph("Operations that left a phase", "Number of operations, by phase.", unitPerSec,
					Query{`sum by (phase) (rate(kuperator_lifecycle_phase_age_seconds_count[$__rate_interval]))`,
						"{{phase}}"}).needs("an operation that left a phase"),
				graph("Time in a phase, 95 %",
					"95th percentile of the time that operations were in a phase, when they leave it, by type.",
					unitSeconds,
					Query{quantile(0.95, "phase, type", "kuperator_lifecycle_phase_age_seconds_bucket"),
						"{{type}} {{phase}}"}).needs("an operation that left a phase in the last minutes"),
				graph("Frozen", "Frozen namespaces, and whether the cluster is frozen.", unitShort,
					Query{`max(kuperator_lifecycle_frozen_namespaces)`, "namespaces"},
					Query{`max(kuperator_lifecycle_cluster_frozen)`, "cluster"}),
			}},
			{Title: "lifecycle-controller", Panels: append([]Panel{
				graph("Steps",
					"Writes, by their effect on the Pod: False took it out of service, True brought it back, no name "+
						"changed labels only.",
					unitPerSec,
					Query{`sum by (service_ready) (rate(kuperator_lifecycle_steps_total[$__rate_interval]))`,
						"{{service_ready}}"}),
				graph("Conflicts, forgotten employers",
					"Writes refused because the Pod had changed, and expected finalizers removed because their employer is "+
						"gone or no longer selects the Pod.",
					unitPerSec, Query{`sum(rate(kuperator_lifecycle_conflicts_total[$__rate_interval]))`, "conflicts"},
					Query{`sum(rate(kuperator_lifecycle_forgotten_employers_total[$__rate_interval]))`, "forgotten"}),
			}, controllerPanels("lifecycle-controller")...)},
		},
	}
}

func backends() Dashboard {
	const calls = "an adapter that makes calls"
	return Dashboard{
		ID: "kuperator-resourceconsist", Title: "Kuperator / Resource consist",
		Description: "Traffic of Pods: what employers wait for, calls to providers, and resourceconsist-controller.",
		Rows: []Row{
			{Title: "Employers and Pods", Panels: []Panel{
				graph("What employers wait for",
					"Pods that an employer waits for before it joins or leaves, by reason.",
					unitShort, Query{`sum by (kind, reason) (kuperator_resourceconsist_waiting_pods)`, "{{kind}} {{reason}}"}),
				graph("Failing employers", "Employers with a failing backend or a shared finalizer.", unitShort,
					Query{`sum by (kind) (kuperator_resourceconsist_failing_employers)`, "{{kind}}"}).alarm(1),
				graph("Actions", "Actions on Pods. leave lets an operation proceed, join makes a Pod serve again.", unitPerSec,
					Query{`sum by (action) (rate(kuperator_resourceconsist_actions_total[$__rate_interval]))`, "{{action}}"}),
				graph("Events lost", "Events of employers whose Pods could not be listed.", unitPerSec,
					Query{`sum by (kind) (rate(kuperator_resourceconsist_employer_events_lost_total[$__rate_interval]))`,
						"{{kind}}"}),
			}},
			{Title: "Providers", Panels: []Panel{
				graph("Calls", "Calls to providers, by adapter, verb and result.", unitPerSec,
					Query{`sum by (adapter, verb, result) (rate(kuperator_resourceconsist_backend_calls_total[$__rate_interval]))`,
						"{{adapter}} {{verb}} {{result}}"}).needs(calls),
				graph("Time of calls, 95 %", "95th percentile of the time of a call.", unitSeconds,
					Query{quantile(0.95, "adapter, verb", "kuperator_resourceconsist_backend_call_duration_seconds_bucket"),
						"{{adapter}} {{verb}}"}).needs(calls),
				graph("Errors", "Share of calls that failed, completely or for some members.", unitRatio,
					Query{`sum by (adapter) (rate(kuperator_resourceconsist_backend_calls_total{result!="ok"}[$__rate_interval])) / ` +
						`(sum by (adapter) (rate(kuperator_resourceconsist_backend_calls_total[$__rate_interval])) > 0)`,
						"{{adapter}}"}).alarm(0.1).needs(calls),
				graph("Failing", "Members whose last change failed, and employers whose backend is not up to date.", unitShort,
					Query{`max by (adapter) (kuperator_resourceconsist_backend_failing_members)`, "{{adapter}} members"},
					Query{`max by (adapter) (kuperator_resourceconsist_backend_failing_employers)`,
						"{{adapter}} employers"}).alarm(1).needs(calls),
			}},
			{Title: "resourceconsist-controller", Panels: controllerPanels("resourceconsist-controller")},
		},
	}
}

func jobDashboard() Dashboard {
	return Dashboard{
		ID: "kuperator-operationjob", Title: "Kuperator / OperationJob",
		Description: "OperationJobs and their targets, and operationjob-controller.",
		Rows: []Row{
			{Title: "Jobs and targets", Panels: []Panel{
				graph("Jobs by progress",
					"Each OperationJob counts once. Those that have ended are counted until their TTL deletes them.",
					unitShort, Query{`sum by (progress) (kuperator_operationjob_jobs)`, "{{progress}}"}).needs("an OperationJob"),
				graph("Targets that ended", "Pods that jobs have succeeded or failed with, by action.", unitPerSec,
					Query{`sum by (action, result) (rate(kuperator_operationjob_targets_total[$__rate_interval]))`,
						"{{action}} {{result}}"}),
				graph("Time of a target",
					"Median and 95th percentile of the time from the start of a target to its end, by action.",
					unitSeconds,
					Query{quantile(0.5, "action", "kuperator_operationjob_target_seconds_bucket"), "{{action}} 50 %"},
					Query{quantile(0.95, "action", "kuperator_operationjob_target_seconds_bucket"),
						"{{action}} 95 %"}).needs("a target of an OperationJob that ended in the last minutes"),
				graph("Conflicts",
					"Decisions about a job of which a write was refused because the job or a Pod had changed. They are "+
						"made again.",
					unitPerSec, Query{`sum(rate(kuperator_operationjob_conflicts_total[$__rate_interval]))`, "conflicts"}),
			}},
			{Title: "operationjob-controller", Panels: controllerPanels("operationjob-controller")},
		},
	}
}

func decorationDashboard() Dashboard {
	return Dashboard{
		ID: "kuperator-poddecoration", Title: "Kuperator / PodDecoration",
		Description: "PodDecorations and the Pods that have them, and poddecoration-controller.",
		Rows: []Row{
			{Title: "Decorations and Pods", Panels: []Panel{
				graph("PodDecorations by state",
					"Each PodDecoration counts once. One that is Stalled waits for a user.",
					unitShort,
					Query{`sum by (state) (kuperator_poddecoration_decorations)`, "{{state}}"}).needs("a PodDecoration"),
				graph("Pods by state",
					"Pods count once for each PodDecoration: those that it selects, those that have some revision of it, "+
						"those that have the updated one, and those that serve with that.",
					unitShort, Query{`sum by (state) (kuperator_poddecoration_pods)`, "{{state}}"}).needs("a PodDecoration"),
				graph("Pods updated",
					"Pods that no CollaSet owns: updated in place, or marked for a deletion after which another Pod is "+
						"created. The dashboard of CollaSets has the others.",
					unitPerSec, Query{`sum by (way) (rate(kuperator_poddecoration_updates_total[$__rate_interval]))`, "{{way}}"}),
				graph("Conflicts",
					"Decisions about a namespace of which a write was refused because an object had changed. They are made "+
						"again.",
					unitPerSec, Query{`sum(rate(kuperator_poddecoration_conflicts_total[$__rate_interval]))`, "conflicts"}),
			}},
			{Title: "poddecoration-controller", Panels: controllerPanels("poddecoration-controller")},
		},
	}
}

func admission() Dashboard {
	return Dashboard{
		ID: "kuperator-webhook", Title: "Kuperator / Admission",
		Description: "webhook-server: its decisions, their latency, and its certificate.",
		Rows: []Row{
			{Title: "Admission", Panels: []Panel{
				graph("Decisions", "Requests by decision. Errors are requests without a decision.", unitPerSec,
					Query{`sum by (webhook, decision) (rate(kuperator_webhook_decisions_total[$__rate_interval]))`,
						"{{webhook}} {{decision}}"}),
				graph("Latency, 99 %", "The API server waits for 2 to 5 seconds.", unitSeconds,
					Query{quantile(0.99, "webhook", `controller_runtime_webhook_latency_seconds_bucket{job="webhook-server"}`),
						"{{webhook}}"}).alarm(1).needs("admission requests in the last minutes"),
				graph("Requests by status", "HTTP status of the responses.", unitPerSec,
					Query{`sum by (webhook, code) (` +
						`rate(controller_runtime_webhook_requests_total{job="webhook-server"}[$__rate_interval]))`,
						"{{webhook}} {{code}}"}),
				graph("Deletions and evictions",
					"Requests to remove Pods: admitted, marked for graceful deletion, refused because the Pod is not out "+
						"of service yet, failed.",
					unitPerSec,
					Query{`sum by (verb, result) (rate(kuperator_webhook_removals_total[$__rate_interval]))`,
						"{{verb}} {{result}}"}),
				graph("Certificate",
					"Days until the serving certificate expires, the minimum of all replicas. It is renewed when a third "+
						"of its validity is left.",
					unitDays,
					Query{`(min(kuperator_webhook_certificate_expiry_timestamp_seconds) - time()) / 86400`, "days"}).stat(),
			}},
			{Title: "webhook-server", Panels: slices.DeleteFunc(controllerPanels("webhook-server"), func(p Panel) bool {
				return p.Title == timeOfReconcile // its one controller looks at the certificate every ten minutes
			})},
		},
	}
}

const timeOfReconcile = "Time of a reconcile, 99 %"

// controllerPanels are the panels that every binary has.
func controllerPanels(job string) []Panel {
	of := `{job="` + job + `"}`
	return []Panel{
		graph("Reconciles", "By controller and result.", unitPerSec,
			Query{`sum by (controller, result) (rate(controller_runtime_reconcile_total` + of + `[$__rate_interval]))`,
				"{{controller}} {{result}}"}),
		graph(timeOfReconcile, "99th percentile of the time of a reconcile.", unitSeconds,
			Query{quantile(0.99, "controller", "controller_runtime_reconcile_time_seconds_bucket"+of),
				"{{controller}}"}).needs("a reconcile in the last minutes"),
		graph("Queue", "Objects that wait for a worker.", unitShort,
			Query{`sum by (controller) (workqueue_depth` + of + `)`, "{{controller}}"}),
		graph("Retries", "Objects that are retried after an error.", unitPerSec,
			Query{`sum by (controller) (rate(workqueue_retries_total` + of + `[$__rate_interval]))`, "{{controller}}"}),
		graph("Writes to the API server", "By resource, verb and result.", unitPerSec,
			Query{`sum by (resource, verb, result) (rate(kuperator_api_writes_total` + of + `[$__rate_interval]))`,
				"{{verb}} {{resource}} {{result}}"}),
		graph("Requests to the API server", "By method and status, including reads.", unitPerSec,
			Query{`sum by (method, code) (rate(rest_client_requests_total` + of + `[$__rate_interval]))`,
				"{{method}} {{code}}"}),
	}
}
