package schema

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/testkit/await"
	"kusionstack.io/kuperator/internal/testkit/crdgen"
	"kusionstack.io/kuperator/internal/testkit/suite"
	"kusionstack.io/kuperator/internal/testkit/testsuite"
)

const (
	interval = 100 * time.Millisecond

	// unhooked is the label of namespaces whose custom resources webhook-server is not asked about.
	unhooked = "schema-test/unhooked"
)

var root = filepath.Join("..", "..", "..")

// world is a running suite and a user of it.
type world struct {
	*suite.Suite
	client  client.Client
	dynamic dynamic.Interface
	kinds   map[string]crdgen.Kind
	seeds   crdgen.Seeds
}

var shared = testsuite.Share(func(ctx context.Context) (*world, error) {
	s, err := suite.Start(ctx, suite.Config{Name: "schema", Nodes: 2, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	w := &world{Suite: s, kinds: map[string]crdgen.Kind{}, seeds: crdgen.Seeds{}}
	if err := w.prepare(ctx); err != nil {
		return nil, fmt.Errorf("%w (%w)", err, s.Stop())
	}
	return w, nil
})

func TestMain(m *testing.M) { shared.Main(m) }

// all reports whether everything is to be tried.
func all() bool { return os.Getenv("FAULTS") == "all" }

// number reads a number from the environment.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

func (w *world) prepare(ctx context.Context) error {
	var err error
	if w.client, err = testsuite.Client(w.RESTConfig()); err != nil {
		return err
	}
	config := w.RESTConfig()
	config.UserAgent, config.WarningHandler = "schema-test", rest.NoWarnings{}
	if w.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	paths, err := filepath.Glob(filepath.Join(root, "deploy", "crd", "apps.kusionstack.io_*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		kind, err := crdgen.Load(path)
		if err != nil {
			return err
		}
		w.kinds[kind.Name] = kind
	}
	if err := w.readSeeds(); err != nil {
		return err
	}
	return w.excludeUnhooked(ctx)
}

// readSeeds reads the objects that operations start from: those that have every field, and those of this package.
func (w *world) readSeeds() error {
	for name := range w.kinds {
		w.seeds[name] = map[string]map[string]any{}
		paths, err := filepath.Glob(filepath.Join("testdata", "seeds", strings.ToLower(name), "*.yaml"))
		if err != nil {
			return err
		}
		for _, path := range append(paths, filepath.Join(root, "api", "apps", "v1alpha1", "testdata",
			strings.ToLower(name)+".yaml")) {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			converted, err := yaml.YAMLToJSON(content)
			if err != nil {
				return err
			}
			object := &unstructured.Unstructured{}
			if err := object.UnmarshalJSON(converted); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			delete(object.Object, "status")
			seed := strings.TrimSuffix(filepath.Base(path), ".yaml")
			if filepath.Dir(path) != filepath.Join("testdata", "seeds", strings.ToLower(name)) {
				seed = "every"
			}
			w.seeds[name][seed] = object.Object
		}
	}
	return nil
}

// excludeUnhooked lets the API server ask webhook-server about custom resources of some namespaces only, and returns
// when it does.
func (w *world) excludeUnhooked(ctx context.Context) error {
	for _, configuration := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		text, err := w.Kubectl(ctx, "get", configuration, "webhook-server", "-o", "json")
		if err != nil {
			return err
		}
		var found struct {
			Webhooks []struct {
				Name  string `json:"name"`
				Rules []struct {
					Resources []string `json:"resources"`
				} `json:"rules"`
			} `json:"webhooks"`
		}
		if err := json.Unmarshal([]byte(text), &found); err != nil {
			return err
		}
		var patches []map[string]any
		for i, webhook := range found.Webhooks {
			if slices.ContainsFunc(webhook.Rules[0].Resources, func(r string) bool { return strings.HasPrefix(r, "pods") }) {
				continue
			}
			patches = append(patches, map[string]any{
				"op": "add", "path": fmt.Sprintf("/webhooks/%d/namespaceSelector", i),
				"value": map[string]any{"matchExpressions": []any{map[string]any{"key": unhooked, "operator": "DoesNotExist"}}},
			})
		}
		patch, err := json.Marshal(patches)
		if err != nil {
			return err
		}
		if _, err := w.Kubectl(ctx, "patch", configuration, "webhook-server", "--type=json", "-p",
			string(patch)); err != nil {
			return err
		}
	}
	return nil
}

// namespace makes a namespace; webhook-server is asked about its custom resources or not.
func (w *world) namespace(t *testing.T, hooked bool) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "schema-", Labels: map[string]string{}}}
	if !hooked {
		ns.Labels[unhooked] = "true"
	}
	require.NoError(t, w.client.Create(t.Context(), ns))
	w.waitForAdmission(t, ns.Name, hooked)
	t.Cleanup(func() {
		if _, err := w.Kubectl(context.WithoutCancel(t.Context()), "delete", "namespace", ns.Name,
			"--wait=false"); err != nil {
			t.Logf("removing namespace %s: %v", ns.Name, err)
		}
	})
	return ns.Name
}

// waitForAdmission waits until the API server asks webhook-server about the namespace, or no longer does, for every
// kind: it learns of namespaces and configurations a moment later.
func (w *world) waitForAdmission(t *testing.T, namespace string, hooked bool) {
	t.Helper()
	probes := map[string]crdgen.Operation{ // only webhook-server refuses these
		"CollaSet": {Kind: "CollaSet", Verb: crdgen.Create, Seed: "plain", Changes: []crdgen.Change{
			{Path: "/spec/template/spec/containers/0/volumeMounts",
				Value: []any{map[string]any{"name": "absent", "mountPath": "/absent"}}},
		}},
		"PodTransitionRule": {Kind: "PodTransitionRule", Verb: crdgen.Create, Seed: "webhook", Changes: []crdgen.Change{
			{Path: "/spec/rules/0/webhook/clientConfig/caBundle", Value: "bm9uZQ=="},
		}},
		"ResourceContext": {Kind: "ResourceContext", Verb: crdgen.Create, Seed: "plain", Changes: []crdgen.Change{
			{Path: "/spec/contexts", Value: []any{map[string]any{"id": int64(7)}, map[string]any{"id": int64(7)}}},
		}},
	}
	for kind, probe := range probes {
		await.Nil(t, "admission of "+kind, func() error {
			_, err := w.try(t.Context(), namespace, probe)
			if refused := err != nil; refused != hooked {
				return fmt.Errorf("refused: %v (%w)", refused, err)
			}
			return nil
		})
	}
}

// seedName is the name of a seed object in a namespace. A CollaSet makes a ResourceContext of its own name.
func seedName(o crdgen.Operation) string { return "seed-" + strings.ToLower(o.Kind) + "-" + o.Seed }

// plant creates every seed object.
func (w *world) plant(t *testing.T, namespace string) {
	t.Helper()
	for kind, seeds := range w.seeds {
		for _, name := range slices.Sorted(maps.Keys(seeds)) {
			o := crdgen.Operation{Kind: kind, Verb: crdgen.Create, Seed: name}
			object, err := w.object(o)
			require.NoError(t, err)
			object.SetName(seedName(o))
			_, err = w.at(kind, namespace).Create(t.Context(), object, metav1.CreateOptions{})
			require.NoError(t, err, "%s %s", kind, name)
		}
	}
}

func (w *world) at(kind, namespace string) dynamic.ResourceInterface {
	return w.dynamic.Resource(w.kinds[kind].Resource).Namespace(namespace)
}

// object is what an operation creates.
func (w *world) object(o crdgen.Operation) (*unstructured.Unstructured, error) {
	seed, ok := w.seeds[o.Kind][o.Seed]
	if !ok {
		return nil, fmt.Errorf("there is no seed %q of %s", o.Seed, o.Kind)
	}
	content, err := o.Object(seed)
	return &unstructured.Unstructured{Object: content}, err
}

// try does an operation as a dry run, which passes through all of admission and is not stored.
func (w *world) try(ctx context.Context, namespace string, o crdgen.Operation) (*unstructured.Unstructured, error) {
	dry := []string{metav1.DryRunAll}
	at := w.at(o.Kind, namespace)
	if o.Verb == crdgen.Create {
		object, err := w.object(o)
		if err != nil {
			return nil, err
		}
		if !touches(o, "/metadata/name") {
			object.SetName("operation")
		}
		return at.Create(ctx, object, metav1.CreateOptions{DryRun: dry, FieldValidation: metav1.FieldValidationStrict})
	}
	for {
		present, err := at.Get(ctx, seedName(o), metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		content, err := o.Object(present.Object)
		if err != nil {
			return nil, err
		}
		changed, err := at.Update(ctx, &unstructured.Unstructured{Object: content},
			metav1.UpdateOptions{DryRun: dry, FieldValidation: metav1.FieldValidationStrict})
		if !apierrors.IsConflict(err) || ctx.Err() != nil {
			return changed, err
		}
	}
}

func touches(o crdgen.Operation, path string) bool {
	return slices.ContainsFunc(o.Changes, func(c crdgen.Change) bool { return c.Path == path })
}

// refusal is why the API server did not accept an operation.
type refusal struct {
	// fields are those that it names.
	fields  []string
	message string
}

// judge returns nil for an operation that was accepted, else the refusal. It is an error if the answer is neither, or
// if the refusal does not name what is wrong.
func judge(o crdgen.Operation, answer error) (*refusal, error) {
	if answer == nil {
		return nil, nil //nolint:nilnil // accepted
	}
	status := apierrors.APIStatus(nil)
	if s, ok := answer.(apierrors.APIStatus); ok {
		status = s
	}
	if status == nil {
		return nil, fmt.Errorf("the API server did not answer: %w", answer)
	}
	r := &refusal{message: status.Status().Message}
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			if cause.Field != "" && cause.Field != "<nil>" {
				r.fields = append(r.fields, cause.Field)
			}
		}
	}
	switch status.Status().Code {
	// some of the API server's have the path in the message only
	case http.StatusUnprocessableEntity, http.StatusForbidden, http.StatusBadRequest:
	default:
		return nil, fmt.Errorf("the answer is %d: %s", status.Status().Code, r.message)
	}
	if !r.names(o) {
		return nil, fmt.Errorf("the refusal does not name what was changed: %s", r.message)
	}
	return r, nil
}

// names reports whether the refusal is about a field that was changed, one above or one below it, or tells its name.
func (r *refusal) names(o crdgen.Operation) bool {
	for _, change := range o.Changes {
		if gone := change.Remove || change.Value == nil || fmt.Sprint(change.Value) == "[]"; gone && len(r.fields) > 0 {
			return true // something that refers to it is wrong now
		}
		changed := dotted(change.Path)
		for _, field := range r.fields {
			field = strings.NewReplacer("[", ".", "]", "", `"`, "").Replace(field)
			if field == changed || strings.HasPrefix(field, changed+".") || strings.HasPrefix(changed, field+".") &&
				field != "spec" {
				return true
			}
		}
		named := strings.FieldsFunc(change.Path, func(r rune) bool { return r == '/' })
		for i := len(named) - 1; i >= 0; i-- {
			if _, err := strconv.Atoi(named[i]); err == nil || named[i] == "x" {
				continue
			}
			if strings.Contains(r.message, strings.NewReplacer("~1", "/", "~0", "~").Replace(named[i])) {
				return true
			}
			break
		}
	}
	return false
}

func dotted(path string) string {
	return strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", ".")
}

// generate returns the operations of this run: the single one of OPERATION, or those of the seed, and those that failed
// once.
func (w *world) generate(t *testing.T, n int) []crdgen.Operation {
	t.Helper()
	if text := os.Getenv("OPERATION"); text != "" {
		operation, err := crdgen.Parse(text)
		require.NoError(t, err)
		return []crdgen.Operation{operation}
	}
	var kinds []crdgen.Kind
	for _, name := range slices.Sorted(maps.Keys(w.kinds)) {
		kinds = append(kinds, w.kinds[name])
	}
	return append(regressions(t), crdgen.Generate(kinds, w.seeds, uint64(number(t, "FAULT_SEED", 1)), n)...)
}

// regressions are operations that failed once.
func regressions(t *testing.T) []crdgen.Operation {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "regressions", "*.json"))
	require.NoError(t, err)
	operations := make([]crdgen.Operation, 0, len(paths))
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		operation, err := crdgen.Parse(string(content))
		require.NoError(t, err, path)
		operations = append(operations, operation)
	}
	return operations
}

// inParallel calls do for every item, a number of them at a time.
func inParallel[T any](items []T, workers int, do func(T)) {
	var wg sync.WaitGroup
	next := make(chan T)
	for range workers {
		wg.Go(func() {
			for item := range next {
				do(item)
			}
		})
	}
	for _, item := range items {
		next <- item
	}
	close(next)
	wg.Wait()
}
