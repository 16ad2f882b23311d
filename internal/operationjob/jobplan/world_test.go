package jobplan_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1alpha1 "kusionstack.io/kuperator/api/apps/v1alpha1"
	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/operationjob/jobplan"
)

var start = time.Unix(1_700_000_000, 0)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// world is a namespace with jobs, Pods of a CollaSet, and those who do something about them. All of it is a store in
// which a write succeeds on the version only that it was decided on.
type world struct {
	now      time.Time
	pods     map[string]*jobplan.Pod
	jobs     []*appsv1alpha1.OperationJob
	uid      int
	problems []string
	// touched are the UIDs of Pods that a job has written to.
	touched map[types.UID]bool
	// refuses are names of Pods whose eviction is refused, broken that new Pods never serve.
	refuses map[string]bool
	broken  bool
	// refusesImages is whether the API server takes no other images, and imageRefused when it said so first, zero if it
	// has not.
	refusesImages bool
	imageRefused  time.Time
	// takesTrials is whether it takes them in a dry run all the same.
	takesTrials bool
	// invalid is what is wrong with selectors.
	invalid string
	// absent are programs that do nothing.
	absent map[string]bool
	// answers is what the owner of other actions says.
	answers podops.TaskResult
	// ids are the instance IDs that the CollaSet has in use, nextID is the next one.
	ids     map[string]bool
	nextID  int
	evicted map[string]int
}

// newWorld has Pods p0, p1, … that serve.
func newWorld(pods int) *world {
	w := &world{now: start, pods: map[string]*jobplan.Pod{}, touched: map[types.UID]bool{}, refuses: map[string]bool{},
		absent: map[string]bool{}, answers: podops.TaskSucceeded, evicted: map[string]int{}, ids: map[string]bool{}}
	for i := range pods {
		p := w.create(fmt.Sprintf("p%d", i), strconv.Itoa(i))
		w.serve(p)
		w.ids[p.InstanceID] = true
	}
	w.nextID = pods
	return w
}

func (w *world) wrong(format string, args ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

func (w *world) version() string { w.uid++; return strconv.Itoa(w.uid) }

// create is a Pod as collaset-controller creates it.
func (w *world) create(name, id string) *jobplan.Pod {
	p := &jobplan.Pod{
		View: podops.View{Namespace: "default", Name: name, Gate: true, Labels: map[string]string{
			podops.CreatingLabel: "1", appsv1alpha1.InstanceIDLabel: id}},
		Managed: true, CollaSet: "web", InstanceID: id,
		Containers: []jobplan.Container{
			{Name: "app", Image: "example.com/app:v1", ImageID: "example.com/app@" + digest},
			{Name: "log", Image: "example.com/log:v1", ImageID: "example.com/log@" + digest},
			{Name: "proxy", Image: "example.com/proxy:v1", ImageID: "example.com/proxy@" + digest, Sidecar: true},
		},
	}
	p.View.UID = types.UID("uid-" + w.version())
	p.Observed = true
	for i := range p.Containers {
		p.Containers[i].ID = "c-" + w.version()
		p.Containers[i].Running, p.Containers[i].Ready = true, true
	}
	w.put(p)
	return p
}

// put stores a new version of a Pod.
func (w *world) put(p *jobplan.Pod) {
	p.View.ResourceVersion = w.version()
	w.pods[p.View.Name] = p
}

// change stores a change of a Pod.
func (w *world) change(name string, c podops.Change) {
	p := *w.pods[name]
	p.View = c.Apply(p.View)
	w.put(&p)
}

// serve has a Pod serve at once.
func (w *world) serve(p *jobplan.Pod) {
	next := *p
	next.View.Labels = maps.Clone(p.View.Labels)
	delete(next.View.Labels, podops.CreatingLabel)
	next.View.Labels[podops.ServiceAvailableLabel] = "1"
	next.View.Ready, next.View.ContainersReady, next.View.ServiceReady = true, true, corev1.ConditionTrue
	w.put(&next)
}

// job adds a job about Pods.
func (w *world) job(action appsv1alpha1.OperationAction, names ...string) *appsv1alpha1.OperationJob {
	job := &appsv1alpha1.OperationJob{}
	job.Namespace, job.Name = "default", fmt.Sprintf("job-%d", len(w.jobs))
	job.UID, job.ResourceVersion, job.Generation = types.UID("job-"+w.version()), w.version(), 1
	job.Spec.Action = action
	for _, name := range names {
		job.Spec.Targets = append(job.Spec.Targets, appsv1alpha1.PodOpsTarget{Name: name})
	}
	w.jobs = append(w.jobs, job)
	return job
}

// view is what a controller knows at a moment.
type view struct {
	pods map[string]*jobplan.Pod
	job  *appsv1alpha1.OperationJob
}

func (w *world) see(job int) view { return view{maps.Clone(w.pods), w.jobs[job].DeepCopy()} }

// target is what a view says of a target. Pods are taken from the store if it is to be read past the cache.
func (v view) target(d appsv1alpha1.OpsStatus, live map[string]*jobplan.Pod) jobplan.Target {
	pods := v.pods
	if live != nil {
		pods = live
	}
	t := jobplan.Target{Pod: pods[d.Name], Live: live != nil}
	if op := d.Operation; op != nil && op.InstanceID != "" {
		for _, name := range slices.Sorted(maps.Keys(pods)) {
			p := pods[name]
			if p.CollaSet == op.CollaSet && p.InstanceID == op.InstanceID && p.View.UID != op.PodUID && !p.View.Terminating {
				t.Successor = p
			}
		}
	}
	return t
}

// decide makes the plan on a view; what it wants confirmed is read from the store.
func (w *world) decide(v view) (jobplan.Snapshot, jobplan.Plan) {
	s := jobplan.Snapshot{Job: v.job, Now: w.now, Selected: slices.Sorted(maps.Keys(v.pods)), Invalid: w.invalid}
	for _, d := range v.job.Status.TargetDetails {
		s.Targets = append(s.Targets, v.target(d, nil))
	}
	for {
		for i, d := range v.job.Status.TargetDetails {
			if w.refuses[d.Name] && w.evicted[d.Name] > 0 {
				s.Targets[i].Refused = "by a budget"
			}
			if !w.imageRefused.IsZero() {
				s.Targets[i].Refused, s.Targets[i].RefusedSince = "no such images here", w.imageRefused
			}
		}
		plan := jobplan.Decide(&s)
		if len(plan.Confirm) == 0 {
			return s, plan
		}
		for _, i := range plan.Confirm {
			if s.Targets[i].Live {
				w.wrong("target %d is confirmed twice", i)
				return s, plan
			}
			s.Targets[i] = v.target(v.job.Status.TargetDetails[i], w.pods)
		}
	}
}

// apply carries out those parts of a plan that are chosen. A part that was decided on an old version does nothing.
func (w *world) apply(v view, plan jobplan.Plan, chosen func() bool) (changed bool) {
	at := slices.IndexFunc(w.jobs, func(j *appsv1alpha1.OperationJob) bool { return j.UID == v.job.UID })
	if at < 0 {
		return false
	}
	now := w.jobs[at]
	for _, write := range plan.Writes {
		if chosen() {
			changed = w.write(now, write) || changed
		}
	}
	current := now.ResourceVersion == v.job.ResourceVersion
	store := func(change func(*appsv1alpha1.OperationJob)) {
		if current && chosen() {
			next := now.DeepCopy()
			change(next)
			next.ResourceVersion = w.version()
			w.jobs[at], current, changed = next, false, true
		}
	}
	switch {
	case plan.Protect:
		store(func(j *appsv1alpha1.OperationJob) { j.Finalizers = []string{appsv1alpha1.ProtectionFinalizer} })
	case plan.Release:
		if w.leftovers(now); current && chosen() {
			w.jobs = slices.Delete(w.jobs, at, at+1)
			return true
		}
	case plan.Delete:
		if current && chosen() {
			w.delete(at)
			return true
		}
	case plan.Status != nil:
		store(func(j *appsv1alpha1.OperationJob) { j.Status = *plan.Status.DeepCopy() })
		w.checkBounds(w.jobs[at])
	}
	return changed
}

// delete has the API server delete a job.
func (w *world) delete(at int) {
	job := w.jobs[at].DeepCopy()
	if len(job.Finalizers) == 0 {
		w.jobs = slices.Delete(w.jobs, at, at+1)
		return
	}
	job.DeletionTimestamp, job.ResourceVersion = &metav1.Time{Time: w.now}, w.version()
	w.jobs[at] = job
}

// write is a write to a Pod.
func (w *world) write(job *appsv1alpha1.OperationJob, write jobplan.Write) (changed bool) {
	started := func(d appsv1alpha1.OpsStatus) bool {
		ofKuperator := d.Operation == nil && d.Progress == appsv1alpha1.OperationProgressProcessing
		return d.Name == write.Pod.View.Name &&
			(ofKuperator || d.Operation != nil && d.Operation.PodUID == write.Pod.View.UID)
	}
	p := w.pods[write.Pod.View.Name]
	if p == nil || p.View.UID != write.Pod.View.UID {
		return false
	}
	if write.Evict {
		w.evicted[p.View.Name]++
		if w.refuses[p.View.Name] {
			return false
		}
		one := "1"
		w.change(p.View.Name, podops.Change{Labels: map[string]*string{appsv1alpha1.ToDeleteLabel: &one}})
		return true
	}
	if p.View.ResourceVersion != write.Pod.View.ResourceVersion {
		return false
	}
	if w.refusesImages && (len(write.Images) > 0 || len(write.Trial) > 0 && !w.takesTrials) {
		if w.imageRefused.IsZero() {
			w.imageRefused = w.now
		}
		return false
	}
	if !slices.ContainsFunc(job.Status.TargetDetails, started) {
		w.wrong("%s: %s %s, which has not started", job.Name, write.Does, p.View.Name)
	}
	if len(write.Images) > 0 && p.View.Ready {
		w.wrong("containers of %s restart while it serves", p.View.Name)
	}
	if write.Change.IsZero() && len(write.Images) == 0 {
		w.wrong("a write of %s that changes nothing", p.View.Name)
	}
	next := *p
	next.Containers = slices.Clone(p.Containers)
	for i := range next.Containers {
		if image := write.Images[next.Containers[i].Name]; image != "" {
			if image == next.Containers[i].Image {
				w.wrong("image %s is no other name", image)
			}
			next.Containers[i].Image = image
			next.Containers[i].Ready = false
		}
	}
	next.View = write.Change.Apply(next.View)
	w.put(&next)
	return true
}

// checkBounds is what must hold of every status that is stored.
func (w *world) checkBounds(job *appsv1alpha1.OperationJob) {
	started, underWay := 0, 0
	for _, d := range job.Status.TargetDetails {
		if d.StartTime != nil {
			started++
		}
		if d.Operation != nil {
			underWay++
		}
	}
	if p := job.Spec.Partition; p != nil && started > int(*p) {
		w.wrong("%s: %d targets have started, partition is %d", job.Name, started, *p)
	}
	if p := job.Spec.Parallelism; p != nil && underWay > p.IntValue() {
		w.wrong("%s: %d targets are under way, parallelism is %s", job.Name, underWay, p)
	}
}

// leftovers checks that nothing of a job is left on any Pod.
func (w *world) leftovers(job *appsv1alpha1.OperationJob) {
	asker, id := jobplan.Asker(job.UID), podops.JobOperationID(job.Name)
	for name, p := range w.pods {
		for _, mark := range []string{appsv1alpha1.ToReplaceLabel, appsv1alpha1.ToDeleteLabel} {
			if strings.Contains(p.View.Annotations[mark+podops.AskersSuffix], asker) && !p.View.Terminating {
				w.wrong("%s still asks for %s of %s", job.Name, mark, name)
			}
		}
		if tasks, _ := podops.Tasks(p.View); tasks[id].Action != "" {
			w.wrong("%s has left its task on %s", job.Name, name)
		}
		if !p.View.Terminating && podops.IsDuring(p.View, id, podops.JobOperationType(string(job.Spec.Action))) {
			w.wrong("%s has left its operation on %s", job.Name, name)
		}
	}
}

// others has all other programs do one thing about each Pod.
func (w *world) others() (changed bool) {
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		for _, do := range []func(*jobplan.Pod) bool{w.lifecycle, w.kubelet, w.collaset, w.owner} {
			if p := w.pods[name]; p != nil {
				changed = do(p) || changed
			}
		}
	}
	return w.creations() || changed
}

// lifecycle advances a Pod as lifecycle-controller does where there are no rules.
func (w *world) lifecycle(p *jobplan.Pod) bool {
	if w.absent["lifecycle"] || p.View.Terminating {
		return false
	}
	v := p.View
	_, marked := v.Labels[appsv1alpha1.ToDeleteLabel]
	isDuring := podops.IsDuring(v, podops.DeletionID, podops.TypeDelete)
	if marked && !isDuring {
		begin, _ := podops.Begin(v, podops.Request{ID: podops.DeletionID, Type: podops.TypeDelete, Deletes: true}, w.now)
		w.change(v.Name, begin)
		return true
	} else if !marked && isDuring {
		w.change(v.Name, podops.Cancel(v, podops.DeletionID, w.now))
		return true
	}
	if podops.Allowed(v, podops.DeletionID, podops.TypeDelete) {
		next := *p
		next.View.Terminating = true
		w.put(&next)
		return true
	}
	step := podops.Advance(v, podops.VerdictsFor(v, nil), w.now)
	if step.IsZero() {
		return false
	}
	next := *p
	next.View = step.Apply(v)
	w.put(&next)
	return true
}

// kubelet reports readiness, restarts containers and ends Pods.
func (w *world) kubelet(p *jobplan.Pod) bool {
	if w.absent["kubelet"] {
		return false
	}
	if p.View.Terminating {
		if len(p.View.Finalizers) == 0 {
			delete(w.pods, p.View.Name)
			if w.byID(p.View.Labels[appsv1alpha1.ReplacePairNewIDLabel]) != nil {
				delete(w.ids, p.InstanceID)
			}
			return true
		}
		return false
	}
	next := *p
	next.Containers = slices.Clone(p.Containers)
	changed := false
	for i := range next.Containers {
		if c := &next.Containers[i]; !c.Ready {
			c.ID, c.Ready, changed = "c-"+w.version(), true, true
		}
	}
	broken := w.broken && next.View.Labels[podops.CreatingLabel] != ""
	if ready := next.View.ServiceReady == corev1.ConditionTrue && !broken; ready != next.View.Ready {
		next.View.Ready, changed = ready, true
	}
	if next.View.ContainersReady == broken {
		next.View.ContainersReady, changed = !broken, true
	}
	if changed {
		w.put(&next)
	}
	return changed
}

// collaset does what collaset-controller does about marks.
func (w *world) collaset(p *jobplan.Pod) bool {
	if w.absent["collaset"] || p.CollaSet == "" || p.View.Terminating {
		return false
	}
	newID, isOrigin := p.View.Labels[appsv1alpha1.ReplacePairNewIDLabel]
	_, wanted := p.View.Labels[appsv1alpha1.ToReplaceLabel]
	_, leaves := p.View.Labels[appsv1alpha1.ToDeleteLabel]
	set := func(key string, value *string) bool {
		w.change(p.View.Name, podops.Change{Labels: map[string]*string{key: value}})
		return true
	}
	fresh := w.byID(newID)
	switch origin, isNew := p.View.Labels[appsv1alpha1.ReplacePairOriginNameLabel]; {
	case isNew && w.pods[origin] == nil:
		return set(appsv1alpha1.ReplacePairOriginNameLabel, nil)
	case isNew:
		return false
	case wanted && !isOrigin && !leaves:
		id := strconv.Itoa(w.nextID)
		w.nextID++
		w.ids[id] = true
		return set(appsv1alpha1.ReplacePairNewIDLabel, &id)
	case isOrigin && wanted && fresh == nil:
		next := w.create("p"+newID, newID)
		next.View.Labels[appsv1alpha1.ReplacePairOriginNameLabel] = p.View.Name
		return true
	case isOrigin && wanted && !leaves && fresh.View.ServiceAvailable() && fresh.View.Ready:
		one := "true"
		return set(appsv1alpha1.ToDeleteLabel, &one)
	case isOrigin && !wanted && !leaves:
		if fresh != nil {
			delete(w.pods, fresh.View.Name)
		}
		delete(w.ids, newID)
		return set(appsv1alpha1.ReplacePairNewIDLabel, nil)
	}
	return false
}

// byID is the Pod of an instance ID that is not terminating.
func (w *world) byID(id string) *jobplan.Pod {
	for _, p := range w.pods {
		if p.InstanceID == id && !p.View.Terminating {
			return p
		}
	}
	return nil
}

// creations creates the Pods of IDs that have none.
func (w *world) creations() (changed bool) {
	if w.absent["collaset"] {
		return false
	}
	held := map[string]bool{}
	for _, p := range w.pods {
		held[p.InstanceID] = true
		held[p.View.Labels[appsv1alpha1.ReplacePairNewIDLabel]] = true // its own Pod is created by collaset
	}
	for _, id := range slices.Sorted(maps.Keys(w.ids)) {
		if !held[id] {
			w.create(fmt.Sprintf("p%s-%s", id, w.version()), id)
			changed = true
		}
	}
	return changed
}

// owner carries other actions out.
func (w *world) owner(p *jobplan.Pod) bool {
	if w.absent["owner"] {
		return false
	}
	for id, task := range podops.TasksFor(p.View, "example.com/warm") {
		w.change(p.View.Name, podops.Answer(p.View, id, task.Request, w.answers, "said so"))
		return true
	}
	return false
}

// settle lets all go on until nothing happens, or the time is over. Time goes on when nothing else does.
func (w *world) settle(t require.TestingT, within time.Duration) {
	always := func() bool { return true }
	for until := w.now.Add(within); ; {
		changed := false
		next := time.Duration(0)
		for i := 0; i < len(w.jobs); i++ {
			v := w.see(i)
			_, plan := w.decide(v)
			changed = w.apply(v, plan, always) || changed
			if plan.NextLook > 0 && (next == 0 || plan.NextLook < next) {
				next = plan.NextLook
			}
		}
		changed = w.others() || changed
		require.Empty(t, w.problems)
		if !changed {
			if next == 0 || w.now.Add(next).After(until) {
				w.now = until
				return
			}
			w.now = w.now.Add(next)
		}
	}
}

// progress is the progress of the job's targets.
func progress(job *appsv1alpha1.OperationJob) string {
	var all []string
	for _, d := range job.Status.TargetDetails {
		one := d.Name + " " + string(d.Progress)
		if d.Error != nil {
			one += " " + string(d.Error.Reason)
		}
		all = append(all, one)
	}
	return strings.Join(all, ", ")
}
