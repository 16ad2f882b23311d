package bench

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/internal/testkit/benchresult"
	"kusionstack.io/kuperator/internal/testkit/fakekubelet"
	"kusionstack.io/kuperator/internal/testkit/suite"
)

const (
	// podsPerSet is the size of the CollaSets that hold Pods at rest.
	podsPerSet = 100
	// otherNode is where Pods are that are not managed; it has no kubelet.
	otherNode = "node-1"
	// newerImage is for CollaSets that may have newImage already.
	newerImage = "app:v3"
	// quietFor is how long nothing but Leases must be asked for until a program counts as idle.
	quietFor = 5 * time.Second
	// memoryRest is how long after work a program is said to be at rest: it looks every 10 s for memory that is not
	// needed any more, and gives it back at the second look.
	memoryRest = 30 * time.Second
)

// BenchmarkIdle measures what the programs hold and ask for while nothing happens, among more and more Pods, of which
// some are managed and under a rule; then it restarts them, and once more when the others are gone, which is what the
// goals are about. It fails on writes after a restart with nothing to do, never on time.
func BenchmarkIdle(b *testing.B) {
	args := map[string][]string{}
	for _, name := range suite.Components() {
		args[name] = []string{"--profiling"}
		if name != suite.Webhook { // as they are shipped; the suite's own are shorter
			args[name] = append(args[name], "--leader-elect-lease-duration=30s", "--leader-elect-renew-deadline=15s",
				"--leader-elect-retry-period=10s")
		}
	}
	a := newArenaOf(b, suite.Config{Nodes: 2, AuditReads: true, Args: args}, fakekubelet.Options{Nodes: []string{node}})
	f := &fleet{arena: a, namespace: a.namespace("ours"), others: a.namespace("others")}
	f.meter = newMeter(b, a.pods, f.namespace, nil)
	a.budget(f.namespace, "budget", "20%",
		metav1.LabelSelector{MatchLabels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}})
	// Without rules, Services that take part and jobs three of the programs would watch no Pods.
	require.NoError(b, a.Create(b.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "nobody",
			Labels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "nobody"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}))
	job := &appsv1alpha1.OperationJob{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "waits"}}
	job.Spec = appsv1alpha1.OperationJobSpec{Action: appsv1alpha1.OpsActionRestart, Partition: ptr.To[int32](0),
		Targets: []appsv1alpha1.PodOpsTarget{{Name: "none"}}}
	require.NoError(b, a.Create(b.Context(), job))
	resident := map[[2]int]map[string]float64{}
	heap := map[[2]int]map[string]float64{}
	var steps [][2]int
	for field := range strings.SplitSeq(fromEnvironment("BENCH_STEPS",
		"0/0,100/900,1000/9000,1000/49000,5000/49000,10000/49000"), ",") {
		var step [2]int
		_, err := fmt.Sscanf(field, "%d/%d", &step[0], &step[1])
		require.NoError(b, err, "BENCH_STEPS holds pairs like 100/900: Pods that are managed, and others")
		require.Zero(b, step[0]%podsPerSet, "CollaSets have %d Pods each", podsPerSet)
		f.grow(step[0], step[1])
		resident[step], heap[step] = f.memory()
		steps = append(steps, step)
		f.compareMemory(steps, resident, heap)
	}
	f.idle()
	if f.foreign > 0 {
		f.restart(newImage)
		f.removeOthers()
	}
	f.restart(newerImage)
	require.NoError(b, a.suite.Died())
}

// fleet are Pods at rest.
type fleet struct {
	arena
	meter             *meter
	namespace, others string
	ours, foreign     int
}

// of are the numbers of Pods.
func (f *fleet) of() map[string]float64 {
	return map[string]float64{"pods": float64(f.ours + f.foreign), "managed": float64(f.ours)}
}

// grow comes to so many Pods: managed ones by CollaSets, and others straight through the API.
func (f *fleet) grow(ours, foreign int) {
	f.meter.lap(serving(oldImage))
	for f.ours < ours {
		f.createSet(f.namespace, fmt.Sprintf("web-%d", f.ours/podsPerSet), podsPerSet)
		f.ours += podsPerSet
	}
	require.Equal(f, ours, f.meter.wait(f.Context(), ours, patience), "managed Pods serve")
	var names []string
	for ; f.foreign < foreign; f.foreign++ {
		names = append(names, otherName(f.foreign))
	}
	f.inFlight(names, func(name string) error {
		_, err := f.arena.pods.CoreV1().Pods(f.others).Create(f.Context(), foreignPod(name), metav1.CreateOptions{})
		return err
	})
	f.rest(memoryRest)
	f.say("%d managed Pods, %d others", f.ours, f.foreign)
}

func otherName(number int) string { return fmt.Sprintf("other-%d", number) }

// removeOthers leaves the managed Pods alone in the cluster.
func (f *fleet) removeOthers() {
	var names []string
	for ; f.foreign > 0; f.foreign-- {
		names = append(names, otherName(f.foreign-1))
	}
	f.inFlight(names, func(name string) error {
		return f.arena.pods.CoreV1().Pods(f.others).Delete(f.Context(), name,
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
	})
	f.calm()
	f.say("%d managed Pods, no others", f.ours)
}

// calm waits until the control plane does next to nothing, as it does not for a while after it was given much to do.
func (f *fleet) calm() {
	const look = 5 * time.Second
	f.until("the control plane is at rest", func() bool {
		s := f.measure(func() { f.rest(look) })
		return s.cpu[apiServer]+s.cpu[etcd] < look.Seconds()/10
	})
}

// foreignPod is of usual size, about 5 KB, and has no owner.
func foreignPod(name string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "other"}},
		Spec:       corev1.PodSpec{NodeName: otherNode},
	}
	for c := range 2 {
		container := corev1.Container{Name: fmt.Sprintf("app-%d", c), Image: oldImage}
		for e := range 18 {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("A_SETTING_OF_THE_PROGRAM_%d", e),
				Value: "the value of a setting of the program"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	return pod
}

// memory reads what each program holds, in MB: resident, as it is, and the heap that is reachable.
func (f *fleet) memory() (resident, heap map[string]float64) {
	resident, heap = map[string]float64{}, map[string]float64{}
	for _, name := range append(suite.Components(), apiServer, etcd) {
		resident[name] = f.resident(name, "VmRSS")
		f.result(benchresult.Figure{Name: "RSS", Unit: "MB", Series: name, Params: f.of(), Values: []float64{resident[name]},
			Note: fmt.Sprintf("at its highest %.0f MB", f.arena.resident(name, "VmHWM"))})
	}
	for _, name := range suite.Components() {
		f.collectGarbage(name)
		metrics, err := f.suite.Metrics(f.Context(), name)
		require.NoError(f, err)
		heap[name] = metricSum(metrics, "go_memstats_heap_alloc_bytes") / 1e6
		f.result(benchresult.Figure{Name: "heap that is reachable", Unit: "MB", Series: name, Params: f.of(),
			Values: []float64{heap[name]}})
	}
	return resident, heap
}

// collectGarbage has a program do so.
func (f *fleet) collectGarbage(name string) {
	request, err := http.NewRequestWithContext(f.Context(), http.MethodGet,
		"http://"+f.suite.MetricsAddress(name)+"/debug/pprof/heap?gc=1", nil)
	require.NoError(f, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(f, err)
	require.NoError(f, response.Body.Close())
	require.Equal(f, http.StatusOK, response.StatusCode, "%s serves profiles", name)
}

// compareMemory keeps the goals of P11, as far as the steps so far tell.
func (f *fleet) compareMemory(steps [][2]int, resident, heap map[[2]int]map[string]float64) {
	now := steps[len(steps)-1]
	goal := func(name string, value float64, note string) {
		f.result(benchresult.Figure{Goal: "P11", Name: name, Params: f.of(), Values: []float64{value}, Note: note})
	}
	largest := func(of func(name string) float64) (float64, string) {
		most, who := math.Inf(-1), ""
		for _, name := range suite.Components() {
			if v := of(name); name != suite.CollaSet && v > most {
				most, who = v, name
			}
		}
		return most, who
	}
	if now[0] >= 1_000 {
		goal("RSS of collaset-controller, 10,000 managed Pods", resident[now][suite.CollaSet], "")
		most, who := largest(func(name string) float64 { return resident[now][name] })
		goal("RSS of the largest other binary, 10,000 managed Pods", most, who)
	}
	first := slices.IndexFunc(steps, func(s [2]int) bool { return s[0] >= 100 })
	if first >= 0 && now[0] >= 10*steps[first][0] {
		each := func(name string) float64 {
			return (heap[now][name] - heap[steps[first]][name]) * 1e3 / float64(now[0]-steps[first][0])
		}
		goal("heap per managed Pod, collaset-controller", each(suite.CollaSet), "")
		most, who := largest(each)
		goal("heap per managed Pod, largest other binary", most, who)
	}
	if len(steps) < 2 {
		return
	}
	if before := steps[len(steps)-2]; before[0] == now[0] && now[1]-before[1] >= 1000 {
		most, who := math.Inf(-1), ""
		for _, name := range suite.Components() {
			if more := resident[now][name] - resident[before][name]; more > most {
				most, who = more, name
			}
		}
		more := now[1] - before[1]
		of := f.of()
		of["others more"] = float64(more)
		f.result(benchresult.Figure{Goal: "P11", Name: "RSS for 40,000 Pods that are not managed", Params: of,
			Values: []float64{most}, Note: who})
	}
}

// idle counts what is asked for while nothing happens.
func (f *fleet) idle() {
	window := 2 * time.Minute
	f.say("idle for %s", window)
	s := f.measure(func() { f.rest(window) })
	most, who := 0, ""
	for _, name := range suite.Components() {
		leases, others := 0, map[string]int{}
		for _, r := range s.requests {
			switch {
			case r.Component() != name:
			case r.Resource == "leases":
				leases++
			default:
				others[r.Verb+" "+r.Resource]++
			}
		}
		total := leases
		for _, n := range others {
			total += n
		}
		if total > most {
			most, who = total, name
		}
		f.result(benchresult.Figure{Name: "requests while nothing happens", Unit: "requests/min", Series: name,
			Params: f.of(),
			Values: []float64{float64(total) / window.Minutes()},
			Note:   fmt.Sprintf("in all %d for the Lease, others %v", leases, others)})
		f.result(benchresult.Figure{Name: "CPU while nothing happens", Unit: "millicores", Series: name, Params: f.of(),
			Values: []float64{s.cpu[name] * 1e3 / window.Seconds()}})
	}
	f.result(benchresult.Figure{Goal: "P9", Name: "idle requests of the busiest binary", Params: f.of(),
		Values: []float64{float64(most) / window.Minutes()}, Note: who})
}

// restart has each program end and start again, with nothing to do and then with a CollaSet that gets an image. The
// goals of P12 and P23 are about managed Pods alone.
func (f *fleet) restart(image string) {
	_, err := f.audit.Next()
	require.NoError(f, err)
	longest, mostLists, lists, writes := 0.0, 0, "", 0
	slowest, slow := 0.0, ""
	for _, name := range suite.Components() {
		begin, ready := f.start(name)
		requests, quiet := f.untilQuiet(name, begin)
		quiet = max(quiet, ready) // lists that come as watches are answered until the program is ready
		if ready > slowest {
			slowest, slow = ready, name
		}
		byKind, wrote := map[string]int{}, 0
		for _, r := range requests {
			switch {
			case r.Verb == "list" && strings.Contains(r.URI, "continue="): // a further page of the same list
			case r.Verb == "list":
				byKind[r.Resource]++
				if byKind[r.Resource] > mostLists {
					mostLists, lists = byKind[r.Resource], name+" "+r.Resource
				}
			case r.Write() && (r.Resource == "pods" || r.Group == appsv1alpha1.SchemeGroupVersion.Group ||
				r.Resource == "controllerrevisions"):
				wrote++
				f.say("   %s", r)
			}
		}
		f.result(benchresult.Figure{Name: "start to quiet", Unit: "s", Series: name, Params: f.of(), Values: []float64{quiet},
			Note: fmt.Sprintf("LISTs %v", byKind)})
		longest, writes = max(longest, quiet), writes+wrote
	}
	goal := func(id, name string, value float64, note string) {
		if f.foreign > 0 {
			id = ""
		}
		f.result(benchresult.Figure{Goal: id, Name: name, Params: f.of(), Values: []float64{value}, Note: note})
	}
	goal("P12", "restart to quiet", longest, "")
	goal("P12", "writes after a restart when nothing changed", float64(writes), "")
	goal("P12", "LISTs of one kind after a restart", float64(mostLists), lists)
	if writes > 0 {
		f.Errorf("%d writes after restarts with nothing to do", writes)
	}
	if f.ours > 0 {
		goal("P12", "restart to first correct write", f.firstWrite(image),
			"collaset-controller, an image that changed meanwhile")
	}
	goal("P23", "start to ready with 10,000 Pods", slowest, slow)
}

// start has a program that runs end and start again. It returns when it was started, and how many seconds later it
// was ready.
func (f *fleet) start(name string) (begin time.Time, ready float64) {
	require.NoError(f, f.suite.StopComponent(name))
	begin = time.Now()
	require.NoError(f, f.suite.Restart(f.Context(), name))
	ready = time.Since(begin).Seconds()
	f.result(benchresult.Figure{Name: "start to ready", Unit: "s", Series: name, Params: f.of(), Values: []float64{ready}})
	return begin, ready
}

// untilQuiet returns a program's requests, and the seconds from the beginning to the last of them but for Leases.
func (f *fleet) untilQuiet(name string, begin time.Time) (all []suite.Request, quiet float64) {
	last := begin
	f.until(name+" is quiet", func() bool {
		requests, err := f.audit.Next()
		require.NoError(f, err)
		for _, r := range requests {
			if r.Component() == name && r.Resource != "leases" && r.Received.After(begin) {
				all = append(all, r)
				if answered := r.Received.Add(r.Took); r.Verb != "watch" && answered.After(last) {
					last = answered
				}
			}
		}
		return time.Since(last) > quietFor
	})
	return all, last.Sub(begin).Seconds()
}

// firstWrite is how long after its start collaset-controller begins an update that was asked for meanwhile, in seconds.
func (f *fleet) firstWrite(image string) float64 {
	require.NoError(f, f.suite.StopComponent(suite.CollaSet))
	set := &appsv1alpha1.CollaSet{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "web-0"}}
	f.merge(set, updatePatch(appsv1alpha1.PodUpdateInPlaceOnly, image))
	_, err := f.audit.Next()
	require.NoError(f, err)
	begin := time.Now()
	require.NoError(f, f.suite.Restart(f.Context(), suite.CollaSet))
	first := time.Time{}
	f.until("collaset-controller writes a Pod", func() bool {
		requests, err := f.audit.Next()
		require.NoError(f, err)
		for _, r := range requests {
			if r.Component() == suite.CollaSet && changesPod(r) {
				first = r.Received.Add(r.Took)
				return true
			}
		}
		return false
	})
	return first.Sub(begin).Seconds()
}

// BenchmarkFailOver measures how long nothing is granted when podtransitionrule-controller ends, asked to and by a
// crash, and another process starts at once, with the Lease as overlay ha has it.
func BenchmarkFailOver(b *testing.B) {
	a := newArena(b, map[string][]string{suite.PodTransitionRule: {"--leader-elect-lease-duration=15s",
		"--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=2s"}})
	namespace := a.namespace("fail-over")
	a.budget(namespace, "web", "50%",
		metav1.LabelSelector{MatchLabels: map[string]string{appsv1alpha1.ControlLabel: appsv1alpha1.ControlValue}})
	m := newMeter(b, a.pods, namespace, nil)
	names := a.managedPods(m, namespace, 10)
	for range numbers(b, "BENCH_ROUNDS", "3")[0] {
		for signal, end := range map[string]func(string) error{"SIGTERM": a.suite.StopComponent, "SIGKILL": a.suite.Kill} {
			a.outAndIn(m, namespace, names[0]) // all is well
			begin := time.Now()
			require.NoError(b, end(suite.PodTransitionRule))
			require.NoError(b, a.suite.Restart(b.Context(), suite.PodTransitionRule))
			granted := a.out(m, namespace, names[1])
			a.result(benchresult.Figure{Goal: "P19", Name: "fail-over after " + signal + " to the next grant",
				Values: []float64{granted.Sub(begin).Seconds()},
				Note:   "no standby: a new process"})
			a.in(namespace, names[1])
		}
	}
	require.NoError(b, a.suite.Died())
}
