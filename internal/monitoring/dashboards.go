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
				{
					Title:       "Operations under way",
					Description: "Operations on Pods, in all phases.",
					Unit:        unitShort, Stat: true,
					Queries: []Query{{`sum(kuperator_lifecycle_operations)`, "operations"}},
				},
				{
					Title: "Oldest out of service",
					Description: "Longest time of an operation in its current phase. " +
						"PreCheck is not included, because the Pod serves in it.",
					Unit: unitSeconds, Stat: true, Alarm: 1800,
					Queries: []Query{{`max(kuperator_lifecycle_oldest_phase_seconds{phase!="PreCheck"})`, "oldest"}},
				},
				{
					Title:       "Pods blocked by rules",
					Description: "Pods that wait for a rule, counted once for each rule that blocks them.",
					Unit:        unitShort, Stat: true,
					Queries: []Query{{`sum(kuperator_podtransitionrule_pods{count="blocked"})`, "blocked"}},
				},
				{
					Title:       "CollaSets that need attention",
					Description: "Halted, stalled or overdue.",
					Unit:        unitShort, Stat: true, Alarm: 1,
					Queries: []Query{{`sum(kuperator_collaset_sets{state=~"halted|stalled|overdue"})`, "CollaSets"}},
				},
				{
					Title:       "Frozen namespaces",
					Description: "Namespaces that are frozen by their own annotation. A frozen cluster counts as 1,000.",
					Unit:        unitShort, Stat: true, Alarm: 1000,
					Queries: []Query{
						{`max(kuperator_lifecycle_frozen_namespaces) + 1000 * max(kuperator_lifecycle_cluster_frozen)`, "frozen"},
					},
				},
				{
					Title:       "Components that answer",
					Description: "Components with at least one replica that Prometheus scrapes.",
					Unit:        unitShort, Stat: true,
					Queries: []Query{{`count(sum by (job) (up{` + jobs + `}) > 0)`, "components"}},
				},
			}},
			{Title: "Operations", Collapsed: true, Panels: []Panel{
				{
					Title: "By phase",
					Description: "Operations under way, by phase. " +
						"Growth in Preparing or Completing means that they wait for traffic, growth in PreCheck that they wait for " +
						"rules.",
					Unit:    unitShort,
					Queries: []Query{{`sum by (phase) (kuperator_lifecycle_operations)`, "{{phase}}"}},
				},
				{
					Title:       "By what they wait for",
					Description: "Reasons, as kubectl kuperator why shows them for each Pod.",
					Unit:        unitShort,
					Queries:     []Query{{`sum by (reason) (kuperator_lifecycle_waiting_operations)`, "{{reason}}"}},
				},
				{
					Title:       "Oldest, by namespace and phase",
					Description: "Longest time of an operation in its current phase.",
					Unit:        unitSeconds, Alarm: 1800, Needs: "an operation under way",
					Queries: []Query{
						{
							`max by (namespace, phase) (kuperator_lifecycle_namespace_oldest_phase_seconds{` + selected +
								`, phase=~"$workload"})`,
							"{{namespace}} {{phase}}",
						},
					},
				},
				{
					Title:       "Time out of service",
					Description: "Median and 95th percentile of the time that operations were in a phase, when they leave it.",
					Unit:        unitSeconds, Needs: "an operation that left a phase in the last minutes",
					Queries: []Query{
						{
							`histogram_quantile(0.5, sum by (phase, le) (rate(kuperator_lifecycle_phase_age_seconds_bucket[$__rate_interval])))`,
							"{{phase}} 50 %",
						},
						{
							`histogram_quantile(0.95, sum by (phase, le) (rate(kuperator_lifecycle_phase_age_seconds_bucket[$__rate_interval])))`,
							"{{phase}} 95 %",
						},
					},
				},
			}},
			{Title: "The suite", Collapsed: true, Panels: []Panel{
				{
					Title: "Replicas and leaders",
					Description: "Replicas that are scraped, and how many of them are leaders: 1 is expected. " +
						"webhook-server has no leader.",
					Unit: unitShort,
					Queries: []Query{
						{`sum by (job) (up{` + jobs + `})`, "{{job}} replicas"},
						{`sum by (job) (leader_election_master_status{` + jobs + `})`, "{{job}} leaders"},
					},
				},
				{
					Title:       "Versions",
					Description: "Replicas by component and version. There are two versions of one component only during an upgrade.",
					Unit:        unitShort,
					Queries:     []Query{{`count by (component, version) (kuperator_build_info)`, "{{component}} {{version}}"}},
				},
				{
					Title:       "Writes to the API server",
					Description: "By component, including events and Leases.",
					Unit:        unitPerSec,
					Queries:     []Query{{`sum by (job) (rate(kuperator_api_writes_total[$__rate_interval]))`, "{{job}}"}},
				},
				{
					Title:       "Writes that failed",
					Description: "By component and result. A few conflicts are usual; they are retried with a new decision.",
					Unit:        unitPerSec,
					Queries: []Query{
						{
							`sum by (job, result) (rate(kuperator_api_writes_total{result!="done"}[$__rate_interval]))`,
							"{{job}} {{result}}",
						},
					},
				},
				{
					Title:       "Reconcile errors",
					Description: "Reconciles that failed and are retried, by controller.",
					Unit:        unitPerSec,
					Queries: []Query{
						{
							`sum by (job, controller) (rate(controller_runtime_reconcile_errors_total{` + jobs + `}[$__rate_interval]))`,
							"{{job}} {{controller}}",
						},
					},
				},
				{
					Title: "Waits for the cache",
					Description: "Reconciles deferred because the cache does not show an own write yet, and the longest current " +
						"wait.",
					Unit: unitShort,
					Queries: []Query{
						{`sum by (job) (rate(kuperator_stale_cache_waits_total[$__rate_interval]))`, "{{job}} waits/s"},
						{`max by (job) (kuperator_stale_cache_oldest_wait_seconds)`, "{{job}} oldest, s"},
					},
				},
				{
					Title:       "Memory",
					Description: "Resident memory, by component and replica.",
					Unit:        unitBytes,
					Queries:     []Query{{`process_resident_memory_bytes{` + jobs + `}`, "{{job}} {{instance}}"}},
				},
				{
					Title:       "CPU",
					Description: "Cores in use, by component and replica.",
					Unit:        unitShort,
					Queries:     []Query{{`rate(process_cpu_seconds_total{` + jobs + `}[$__rate_interval])`, "{{job}} {{instance}}"}},
				},
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
				{
					Title:       "By state",
					Description: "Each CollaSet counts once. Halted, stalled and overdue CollaSets need attention.",
					Unit:        unitShort,
					Queries:     []Query{{`sum by (state) (kuperator_collaset_sets)`, "{{state}}"}},
				},
				{
					Title:       "Pods",
					Description: "Pods of all CollaSets, by counter of their status.",
					Unit:        unitShort,
					Queries:     []Query{{`sum by (count) (kuperator_collaset_pods)`, "{{count}}"}},
				},
				{
					Title:       "Blocked Pods",
					Description: "Pods by the reasons of status.blockers.",
					Unit:        unitShort,
					Queries:     []Query{{`sum by (reason) (kuperator_collaset_blocked_pods)`, "{{reason}}"}},
				},
				{
					Title:       "Need attention",
					Description: "CollaSets that are halted, stalled or overdue, by name.",
					Unit:        unitShort, Alarm: 1, Needs: "a CollaSet that is halted, stalled or overdue",
					Queries: []Query{
						{
							`kuperator_collaset_state{` + selected + `, collaset=~"$workload", state=~"halted|stalled|overdue"}`,
							"{{namespace}}/{{collaset}} {{state}}",
						},
					},
				},
			}},
			{Title: "Chosen CollaSets", Panels: []Panel{
				{
					Title:       "Rollout",
					Description: "Share of Pods at the updated revision.",
					Unit:        unitRatio,
					Queries: []Query{
						{
							`sum by (namespace, collaset) (` + one + `, count="updated"}) / (sum by (namespace, collaset) (` + one +
								`, count="desired"}) > 0)`,
							"{{namespace}}/{{collaset}}",
						},
					},
				},
				{
					Title:       "Available of desired",
					Description: "Share of the desired Pods that are available.",
					Unit:        unitRatio,
					Queries: []Query{
						{
							`sum by (namespace, collaset) (` + one + `, count="available"}) / (sum by (namespace, collaset) (` + one +
								`, count="desired"}) > 0)`,
							"{{namespace}}/{{collaset}}",
						},
					},
				},
				{
					Title:       "Operating",
					Description: "Pods in an update or scale-in.",
					Unit:        unitShort,
					Queries: []Query{
						{`sum by (namespace, collaset) (` + one + `, count="operating"})`, "{{namespace}}/{{collaset}}"},
					},
				},
				{
					Title:       "Terminating",
					Description: "Terminating Pods.",
					Unit:        unitShort,
					Queries: []Query{
						{`sum by (namespace, collaset) (` + one + `, count="terminating"})`, "{{namespace}}/{{collaset}}"},
					},
				},
			}},
			{Title: "collaset-controller", Panels: append([]Panel{
				{
					Title:       "Actions",
					Description: "Writes by action. An update in place has the actions begin, change and finish.",
					Unit:        unitPerSec,
					Queries:     []Query{{`sum by (action) (rate(kuperator_collaset_actions_total[$__rate_interval]))`, "{{action}}"}},
				},
				{
					Title: "In flight",
					Description: "Pods in an update in place whose next step is the suite's, and CollaSets with Pods that wait " +
						"until there are fewer.",
					Unit: unitShort,
					Queries: []Query{
						{`sum(kuperator_collaset_in_flight_pods)`, "Pods in flight"},
						{`sum(kuperator_collaset_waiting_sets)`, "CollaSets that wait"},
					},
				},
				{
					Title:       "Actions that failed",
					Description: "Conflicts are retried with a new decision. Failures are retried, and status has the error.",
					Unit:        unitPerSec,
					Queries: []Query{
						{
							`sum by (action, result) (rate(kuperator_collaset_actions_total{result!="done"}[$__rate_interval]))`,
							"{{action}} {{result}}",
						},
					},
				},
				{
					Title:       "Time to decide",
					Description: "99th percentile of the time of a decision: on a whole CollaSet, and on the next step of one Pod.",
					Unit:        unitSeconds, Needs: "a decision in the last minutes",
					Queries: []Query{
						{
							`histogram_quantile(0.99, sum by (of, le) (rate(kuperator_collaset_decide_seconds_bucket[$__rate_interval])))`,
							"{{of}} 99 %",
						},
					},
				},
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
				{
					Title:       "By state",
					Description: "Stalled rules must be corrected. The webhook of an unreachable rule does not answer.",
					Unit:        unitShort,
					Queries:     []Query{{`sum by (state) (kuperator_podtransitionrule_rules)`, "{{state}}"}},
				},
				{
					Title:       "Blocked Pods",
					Description: "Pods that wait for a rule, by the kind of check.",
					Unit:        unitShort,
					Queries:     []Query{{`sum by (reason) (kuperator_podtransitionrule_waiting_pods)`, "{{reason}}"}},
				},
				{
					Title:       "Pods",
					Description: "Pods of all rules, by counter of their status.",
					Unit:        unitShort,
					Queries:     []Query{{`sum by (count) (kuperator_podtransitionrule_pods)`, "{{count}}"}},
				},
				{
					Title:       "Frozen",
					Description: "Namespaces with rules in which no new grants are given.",
					Unit:        unitShort, Needs: "a frozen namespace with a rule",
					Queries: []Query{{`kuperator_podtransitionrule_frozen{` + selected + `}`, "{{namespace}}"}},
				},
			}},
			{Title: "Chosen rules", Panels: []Panel{
				{
					Title:       "Budget in use",
					Description: "Pods out of service as a share of the rule's budget. At 100 % the next Pod waits.",
					Unit:        unitRatio,
					Queries:     []Query{{of("unavailable_pods") + " / (" + of("budget_pods") + " > 0)", "{{namespace}}/{{rule}}"}},
				},
				{
					Title:       "Budget",
					Description: "Pods that may be out of service at the same time, and Pods that are.",
					Unit:        unitShort,
					Queries: []Query{
						{of("budget_pods"), "{{namespace}}/{{rule}} allowed"},
						{of("unavailable_pods"), "{{namespace}}/{{rule}} unavailable"},
					},
				},
				{
					Title:       "Granted and blocked",
					Description: "Pods with a grant, and Pods that wait for one.",
					Unit:        unitShort,
					Queries: []Query{
						{of("granted_pods"), "{{namespace}}/{{rule}} granted"},
						{of("blocked_pods"), "{{namespace}}/{{rule}} blocked"},
					},
				},
				{
					Title:       "Available of desired",
					Description: "Share of the rule's desired Pods that are in service and not granted.",
					Unit:        unitRatio,
					Queries:     []Query{{of("available_pods") + " / (" + of("desired_pods") + " > 0)", "{{namespace}}/{{rule}}"}},
				},
			}},
			{Title: "Webhooks of rules", Panels: []Panel{
				{
					Title:       "Requests",
					Description: "Requests to the servers of webhook rules, by result.",
					Unit:        unitPerSec, Needs: "a webhook rule that was asked about Pods",
					Queries: []Query{
						{
							`sum by (namespace, rule, result) (rate(kuperator_rule_webhook_requests_total{` + selected +
								`, rule=~"$workload"}[$__rate_interval]))`,
							"{{namespace}}/{{rule}} {{result}}",
						},
					},
				},
				{
					Title:       "Time of requests",
					Description: "Median and 99th percentile of the time of a request.",
					Unit:        unitSeconds, Needs: "a request in the last minutes",
					Queries: []Query{
						{
							`histogram_quantile(0.5, sum by (le) (rate(kuperator_rule_webhook_request_seconds_bucket[$__rate_interval])))`,
							"50 %",
						},
						{
							`histogram_quantile(0.99, sum by (le) (rate(kuperator_rule_webhook_request_seconds_bucket[$__rate_interval])))`,
							"99 %",
						},
					},
				},
				{
					Title:       "In flight",
					Description: "Requests that have not been answered yet.",
					Unit:        unitShort,
					Queries:     []Query{{`sum(kuperator_rule_webhook_requests_in_flight)`, "requests"}},
				},
				{
					Title:       "Passed without an answer",
					Description: "Pods that passed although the request to the server failed (failurePolicy Ignore).",
					Unit:        unitPerSec, Needs: "a webhook rule that was asked about Pods",
					Queries: []Query{
						{
							`sum by (namespace, rule) (rate(kuperator_rule_webhook_ignored_failures_total{` + selected +
								`, rule=~"$workload"}[$__rate_interval]))`,
							"{{namespace}}/{{rule}}",
						},
					},
				},
			}},
			{Title: "podtransitionrule-controller", Panels: append([]Panel{
				{
					Title:       "Time to decide",
					Description: "Median and 99th percentile of the time of a decision on a namespace.",
					Unit:        unitSeconds, Needs: "a decision in the last minutes",
					Queries: []Query{
						{
							`histogram_quantile(0.5, sum by (le) (rate(kuperator_podtransitionrule_decide_seconds_bucket[$__rate_interval])))`,
							"50 %",
						},
						{
							`histogram_quantile(0.99, sum by (le) (rate(kuperator_podtransitionrule_decide_seconds_bucket[$__rate_interval])))`,
							"99 %",
						},
					},
				},
				{
					Title: "Conflicts and notes",
					Description: "Writes refused because the rule had changed, and annotations written to Pods that have waited " +
						"for long.",
					Unit: unitPerSec,
					Queries: []Query{
						{`sum(rate(kuperator_podtransitionrule_conflicts_total[$__rate_interval]))`, "conflicts"},
						{`sum by (result) (rate(kuperator_podtransitionrule_notes_total[$__rate_interval]))`, "notes {{result}}"},
					},
				},
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
				{
					Title:       "Under way, by namespace and phase",
					Description: "Namespaces without operations have no series.",
					Unit:        unitShort, Needs: "an operation under way",
					Queries: []Query{
						{
							`sum by (namespace, phase) (kuperator_lifecycle_namespace_operations{` + selected + `, phase=~"$workload"})`,
							"{{namespace}} {{phase}}",
						},
					},
				},
				{
					Title:       "Oldest, by phase",
					Description: "Longest time of an operation in the phase.",
					Unit:        unitSeconds,
					Queries:     []Query{{`max by (phase) (kuperator_lifecycle_oldest_phase_seconds)`, "{{phase}}"}},
				},
				{
					Title:       "Past their deadline",
					Description: "By phase, type and policy. Deadlines are set by flags or annotations.",
					Unit:        unitShort, Alarm: 1, Needs: "an operation past its deadline",
					Queries: []Query{
						{`sum by (phase, type, policy) (kuperator_lifecycle_overdue_operations)`, "{{phase}} {{type}} {{policy}}"},
					},
				},
				{
					Title:       "Operations that left a phase",
					Description: "Number of operations, by phase.",
					Unit:        unitPerSec, Needs: "an operation that left a phase",
					Queries: []Query{
						{`sum by (phase) (rate(kuperator_lifecycle_phase_age_seconds_count[$__rate_interval]))`, "{{phase}}"},
					},
				},
				{
					Title:       "Time in a phase, 95 %",
					Description: "95th percentile of the time that operations were in a phase, when they leave it, by type.",
					Unit:        unitSeconds, Needs: "an operation that left a phase in the last minutes",
					Queries: []Query{
						{
							`histogram_quantile(0.95, sum by (phase, type, le) (rate(kuperator_lifecycle_phase_age_seconds_bucket[$__rate_interval])))`,
							"{{type}} {{phase}}",
						},
					},
				},
				{
					Title:       "Frozen",
					Description: "Frozen namespaces, and whether the cluster is frozen.",
					Unit:        unitShort,
					Queries: []Query{
						{`max(kuperator_lifecycle_frozen_namespaces)`, "namespaces"},
						{`max(kuperator_lifecycle_cluster_frozen)`, "cluster"},
					},
				},
			}},
			{Title: "lifecycle-controller", Panels: append([]Panel{
				{
					Title: "Steps",
					Description: "Writes, by their effect on the Pod: False took it out of service, True brought it back, " +
						"no name changed labels only.",
					Unit: unitPerSec,
					Queries: []Query{
						{`sum by (service_ready) (rate(kuperator_lifecycle_steps_total[$__rate_interval]))`, "{{service_ready}}"},
					},
				},
				{
					Title: "Conflicts, forgotten employers",
					Description: "Writes refused because the Pod had changed, and expected finalizers removed because their " +
						"employer is gone or no longer selects the Pod.",
					Unit: unitPerSec,
					Queries: []Query{
						{`sum(rate(kuperator_lifecycle_conflicts_total[$__rate_interval]))`, "conflicts"},
						{`sum(rate(kuperator_lifecycle_forgotten_employers_total[$__rate_interval]))`, "forgotten"},
					},
				},
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
				{
					Title:       "What employers wait for",
					Description: "Pods that an employer waits for before it joins or leaves, by reason.",
					Unit:        unitShort,
					Queries:     []Query{{`sum by (kind, reason) (kuperator_resourceconsist_waiting_pods)`, "{{kind}} {{reason}}"}},
				},
				{
					Title:       "Failing employers",
					Description: "Employers with a failing backend or a shared finalizer.",
					Unit:        unitShort, Alarm: 1,
					Queries: []Query{{`sum by (kind) (kuperator_resourceconsist_failing_employers)`, "{{kind}}"}},
				},
				{
					Title:       "Actions",
					Description: "Actions on Pods. leave lets an operation proceed, join makes a Pod serve again.",
					Unit:        unitPerSec,
					Queries: []Query{
						{`sum by (action) (rate(kuperator_resourceconsist_actions_total[$__rate_interval]))`, "{{action}}"},
					},
				},
				{
					Title:       "Events lost",
					Description: "Events of employers whose Pods could not be listed.",
					Unit:        unitPerSec,
					Queries: []Query{
						{`sum by (kind) (rate(kuperator_resourceconsist_employer_events_lost_total[$__rate_interval]))`, "{{kind}}"},
					},
				},
			}},
			{Title: "Providers", Panels: []Panel{
				{
					Title:       "Calls",
					Description: "Calls to providers, by adapter, verb and result.",
					Unit:        unitPerSec, Needs: calls,
					Queries: []Query{
						{
							`sum by (adapter, verb, result) (rate(kuperator_resourceconsist_backend_calls_total[$__rate_interval]))`,
							"{{adapter}} {{verb}} {{result}}",
						},
					},
				},
				{
					Title:       "Time of calls, 95 %",
					Description: "95th percentile of the time of a call.",
					Unit:        unitSeconds, Needs: calls,
					Queries: []Query{
						{
							`histogram_quantile(0.95, sum by (adapter, verb, le) (rate(kuperator_resourceconsist_backend_call_duration_seconds_bucket[$__rate_interval])))`,
							"{{adapter}} {{verb}}",
						},
					},
				},
				{
					Title:       "Errors",
					Description: "Share of calls that failed, completely or for some members.",
					Unit:        unitRatio, Alarm: 0.1, Needs: calls,
					Queries: []Query{
						{
							`sum by (adapter) (rate(kuperator_resourceconsist_backend_calls_total{result!="ok"}[$__rate_interval])) / (sum by (adapter) (rate(kuperator_resourceconsist_backend_calls_total[$__rate_interval])) > 0)`,
							"{{adapter}}",
						},
					},
				},
				{
					Title:       "Failing",
					Description: "Members whose last change failed, and employers whose backend is not up to date.",
					Unit:        unitShort, Alarm: 1, Needs: calls,
					Queries: []Query{
						{`max by (adapter) (kuperator_resourceconsist_backend_failing_members)`, "{{adapter}} members"},
						{`max by (adapter) (kuperator_resourceconsist_backend_failing_employers)`, "{{adapter}} employers"},
					},
				},
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
				{
					Title: "Jobs by progress",
					Description: "Each OperationJob counts once. " +
						"Those that have ended are counted until their TTL deletes them.",
					Unit: unitShort, Needs: "an OperationJob",
					Queries: []Query{{`sum by (progress) (kuperator_operationjob_jobs)`, "{{progress}}"}},
				},
				{
					Title:       "Targets that ended",
					Description: "Pods that jobs have succeeded or failed with, by action.",
					Unit:        unitPerSec,
					Queries: []Query{
						{
							`sum by (action, result) (rate(kuperator_operationjob_targets_total[$__rate_interval]))`,
							"{{action}} {{result}}",
						},
					},
				},
				{
					Title:       "Time of a target",
					Description: "Median and 95th percentile of the time from the start of a target to its end, by action.",
					Unit:        unitSeconds, Needs: "a target of an OperationJob that ended in the last minutes",
					Queries: []Query{
						{
							`histogram_quantile(0.5, sum by (action, le) (rate(kuperator_operationjob_target_seconds_bucket[$__rate_interval])))`,
							"{{action}} 50 %",
						},
						{
							`histogram_quantile(0.95, sum by (action, le) (rate(kuperator_operationjob_target_seconds_bucket[$__rate_interval])))`,
							"{{action}} 95 %",
						},
					},
				},
				{
					Title: "Conflicts",
					Description: "Decisions about a job of which a write was refused because the job or a Pod had changed. " +
						"They are made again.",
					Unit:    unitPerSec,
					Queries: []Query{{`sum(rate(kuperator_operationjob_conflicts_total[$__rate_interval]))`, "conflicts"}},
				},
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
				{
					Title:       "PodDecorations by state",
					Description: "Each PodDecoration counts once. One that is Stalled waits for a user.",
					Unit:        unitShort, Needs: "a PodDecoration",
					Queries: []Query{{`sum by (state) (kuperator_poddecoration_decorations)`, "{{state}}"}},
				},
				{
					Title: "Pods by state",
					Description: "Pods count once for each PodDecoration: those that it selects, those that have some revision of it, " +
						"those that have the updated one, and those that serve with that.",
					Unit: unitShort, Needs: "a PodDecoration",
					Queries: []Query{{`sum by (state) (kuperator_poddecoration_pods)`, "{{state}}"}},
				},
				{
					Title: "Pods updated",
					Description: "Pods that no CollaSet owns: updated in place, or marked for a deletion after which another Pod is " +
						"created. The dashboard of CollaSets has the others.",
					Unit: unitPerSec,
					Queries: []Query{{
						`sum by (way) (rate(kuperator_poddecoration_updates_total[$__rate_interval]))`, "{{way}}",
					}},
				},
				{
					Title: "Conflicts",
					Description: "Decisions about a namespace of which a write was refused because an object had changed. " +
						"They are made again.",
					Unit:    unitPerSec,
					Queries: []Query{{`sum(rate(kuperator_poddecoration_conflicts_total[$__rate_interval]))`, "conflicts"}},
				},
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
				{
					Title:       "Decisions",
					Description: "Requests by decision. Errors are requests without a decision.",
					Unit:        unitPerSec,
					Queries: []Query{
						{
							`sum by (webhook, decision) (rate(kuperator_webhook_decisions_total[$__rate_interval]))`,
							"{{webhook}} {{decision}}",
						},
					},
				},
				{
					Title:       "Latency, 99 %",
					Description: "The API server waits for 2 to 5 seconds.",
					Unit:        unitSeconds, Alarm: 1, Needs: "admission requests in the last minutes",
					Queries: []Query{
						{
							`histogram_quantile(0.99, sum by (webhook, le) (rate(controller_runtime_webhook_latency_seconds_bucket{job="webhook-server"}[$__rate_interval])))`,
							"{{webhook}}",
						},
					},
				},
				{
					Title:       "Requests by status",
					Description: "HTTP status of the responses.",
					Unit:        unitPerSec,
					Queries: []Query{
						{
							`sum by (webhook, code) (rate(controller_runtime_webhook_requests_total{job="webhook-server"}[$__rate_interval]))`,
							"{{webhook}} {{code}}",
						},
					},
				},
				{
					Title: "Deletions and evictions",
					Description: "Requests to remove Pods: admitted, marked for graceful deletion, refused because the Pod is not " +
						"out of service yet, failed.",
					Unit: unitPerSec,
					Queries: []Query{
						{`sum by (verb, result) (rate(kuperator_webhook_removals_total[$__rate_interval]))`, "{{verb}} {{result}}"},
					},
				},
				{
					Title: "Certificate",
					Description: "Days until the serving certificate expires, the minimum of all replicas. " +
						"It is renewed when a third of its validity is left.",
					Unit: unitDays, Stat: true,
					Queries: []Query{{`(min(kuperator_webhook_certificate_expiry_timestamp_seconds) - time()) / 86400`, "days"}},
				},
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
		{
			Title:       "Reconciles",
			Description: "By controller and result.",
			Unit:        unitPerSec,
			Queries: []Query{
				{
					`sum by (controller, result) (rate(controller_runtime_reconcile_total` + of + `[$__rate_interval]))`,
					"{{controller}} {{result}}",
				},
			},
		},
		{
			Title:       timeOfReconcile,
			Description: "99th percentile of the time of a reconcile.",
			Unit:        unitSeconds, Needs: "a reconcile in the last minutes",
			Queries: []Query{
				{
					`histogram_quantile(0.99, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket` + of +
						`[$__rate_interval])))`,
					"{{controller}}",
				},
			},
		},
		{
			Title:       "Queue",
			Description: "Objects that wait for a worker.",
			Unit:        unitShort,
			Queries:     []Query{{`sum by (controller) (workqueue_depth` + of + `)`, "{{controller}}"}},
		},
		{
			Title:       "Retries",
			Description: "Objects that are retried after an error.",
			Unit:        unitPerSec,
			Queries: []Query{
				{`sum by (controller) (rate(workqueue_retries_total` + of + `[$__rate_interval]))`, "{{controller}}"},
			},
		},
		{
			Title:       "Writes to the API server",
			Description: "By resource, verb and result.",
			Unit:        unitPerSec,
			Queries: []Query{
				{
					`sum by (resource, verb, result) (rate(kuperator_api_writes_total` + of + `[$__rate_interval]))`,
					"{{verb}} {{resource}} {{result}}",
				},
			},
		},
		{
			Title:       "Requests to the API server",
			Description: "By method and status, including reads.",
			Unit:        unitPerSec,
			Queries: []Query{
				{`sum by (method, code) (rate(rest_client_requests_total` + of + `[$__rate_interval]))`, "{{method}} {{code}}"},
			},
		},
	}
}
