package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	crwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"kusionstack.io/kuperator/api/podops"
	"kusionstack.io/kuperator/internal/bootstrap"
	"kusionstack.io/kuperator/internal/revision"
	"kusionstack.io/kuperator/internal/revision/detect"
	"kusionstack.io/kuperator/internal/webhook/certs"
)

// Name is the name of the component, of its Service and of both its webhook configurations.
const Name = "webhook-server"

// secretName is the Secret that the replicas share; the Role names it.
const secretName = Name + "-certs"

// Paths of the webhooks, as deploy/webhook-server has them.
const (
	pathMutatePods                 = "/mutate-pods"
	pathDecoratePods               = "/decorate-pods"
	pathDeletePods                 = "/delete-pods"
	pathEvictPods                  = "/evict-pods"
	pathMutateCollaSets            = "/mutate-collasets"
	pathValidateCollaSets          = "/validate-collasets"
	pathValidatePodTransitionRules = "/validate-podtransitionrules"
	pathValidateResourceContexts   = "/validate-resourcecontexts"
	pathValidatePodDecorations     = "/validate-poddecorations"
)

// guarded are all webhooks, by the kind of their configuration and their name, with their paths. To be believed at
// one that removes Pods is to have Pods marked for deletion, and what is sent to any of them takes memory.
var guarded = map[string]string{
	"mutating pods.webhook-server.kusionstack.io":                 pathMutatePods,
	"mutating decorate.pods.webhook-server.kusionstack.io":        pathDecoratePods,
	"mutating collasets.webhook-server.kusionstack.io":            pathMutateCollaSets,
	"validating collasets.webhook-server.kusionstack.io":          pathValidateCollaSets,
	"validating podtransitionrules.webhook-server.kusionstack.io": pathValidatePodTransitionRules,
	"validating resourcecontexts.webhook-server.kusionstack.io":   pathValidateResourceContexts,
	"validating poddecorations.webhook-server.kusionstack.io":     pathValidatePodDecorations,
	"validating deletion.pods.webhook-server.kusionstack.io":      pathDeletePods,
	"validating eviction.pods.webhook-server.kusionstack.io":      pathEvictPods,
}

// handlers are all webhooks by path.
func handlers(pods *podMutator, removing *remover, changes *forecaster) map[string]admission.HandlerFunc {
	return map[string]admission.HandlerFunc{
		pathMutatePods:                 pods.mutate,
		pathDecoratePods:               pods.mutate, // of Pods that are not managed
		pathDeletePods:                 removing.deletion,
		pathEvictPods:                  removing.eviction,
		pathMutateCollaSets:            defaultCollaSet,
		pathValidateCollaSets:          changes.validateAndForecast,
		pathValidatePodTransitionRules: validatePodTransitionRule,
		pathValidateResourceContexts:   validateResourceContext,
		pathValidatePodDecorations:     changes.validatePodDecoration,
	}
}

// flags are the component's own.
type flags struct {
	bindAddress  string
	port         int
	advertise    string
	advertiseURL *url.URL
	certLifetime time.Duration
	certSettle   time.Duration
	certDir      string

	removal          removalPolicy
	announceServices bool
	restart          revision.RestartAnnotations
	compatibility    bootstrap.Compatibility
}

// The users whose deletions are never held up: they clean up after Pods or owners that are gone already, or must not
// wait. Those of a cluster whose controllers share the user system:kube-controller-manager are not among them: that
// user scales ReplicaSets as well.
var undelayedUsers = []string{
	garbageCollector,
	"system:serviceaccount:kube-system:namespace-controller",
	"system:serviceaccount:kube-system:pod-garbage-collector",
	"system:serviceaccount:kube-system:node-controller",
	"system:serviceaccount:kube-system:taint-eviction-controller",
	"system:serviceaccount:kube-system:device-taint-eviction-controller",
	"system:kube-scheduler",
}

// undelayedGroups are the kubelets.
var undelayedGroups = []string{"system:nodes"}

// shortestSettle is what an API server needs at the very least to see a webhook configuration.
const shortestSettle = time.Second

// Component describes webhook-server. Each call gives a separate component.
func Component() bootstrap.Component {
	var f flags
	var certificate certificate
	var webhooks *server
	return bootstrap.Component{
		Name:  Name,
		Short: "Serves the admission webhooks for Pods and for the suite's own objects.",
		Long: "webhook-server serves admission webhooks. It adds the readiness gate of the Pod protocol to managed Pods, " +
			"decorates new Pods, takes managed ones out of service before they are deleted or evicted, sets defaults of " +
			"CollaSets, and rejects CollaSets, PodTransitionRules, PodDecorations and ResourceContexts " +
			"that can never work. It issues and renews its own certificates, or serves a mounted one.",
		Cache:    func(*bootstrap.Options) cache.Options { return cacheOptions() },
		AddFlags: func(fs *pflag.FlagSet) { f.add(fs) },
		Validate: func(*bootstrap.Options) error { return f.validate() },
		Manager: func(o *bootstrap.Options, m *ctrl.Options) error {
			var err error
			if certificate, err = f.certificate(o.LeaderElectNamespace); err != nil { // where the Pod runs; there is no Lease
				return err
			}
			webhooks = newServer(net.JoinHostPort(f.bindAddress, strconv.Itoa(f.port)), certificate)
			m.WebhookServer = webhooks
			return nil
		},
		Setup: func(ctx context.Context, mgr ctrl.Manager, o bootstrap.Options) error {
			if err := f.setup(ctx, mgr, certificate, o.Namespaces); err != nil {
				return err
			}
			return certificate.Add(ctx, mgr)
		},
		ReadyChecks: map[string]healthz.Checker{
			"serving":     func(r *http.Request) error { return webhooks.StartedChecker()(r) },
			"certificate": func(r *http.Request) error { return certificate.Check(r) },
		},
	}
}

// certificate is what the server shows, and who keeps it.
type certificate interface {
	// TLS makes a server show it.
	TLS(*tls.Config)
	// Add makes mgr keep it.
	Add(context.Context, ctrl.Manager) error
	// NotAfter is when the one that is shown expires; zero without one.
	NotAfter() time.Time
	// Token is what the paths of calls end with. It is not needed where the webhook configurations have nothing that
	// only API servers know; where it is needed and empty, no call may be believed.
	Token() (token string, needed bool)
	// Check returns an error if the API server cannot call the server with it.
	Check(*http.Request) error
}

func (f *flags) certificate(namespace string) (certificate, error) {
	settings := certs.Settings{
		Name:         Name,
		Namespace:    namespace,
		SecretName:   secretName,
		AdvertiseURL: f.advertiseURL,
		Guarded:      guarded,
		Lifetime:     f.certLifetime,
		Settle:       f.certSettle,
	}
	if f.certDir == "" {
		return certs.New(settings, clock.RealClock{}), nil
	}
	mounted, err := certs.NewMounted(f.certDir, settings, clock.RealClock{})
	if err != nil {
		return nil, fmt.Errorf("--webhook-cert-dir: %w", err)
	}
	return mounted, nil
}

// cacheOptions let the cache hold, beside the webhook configurations, the Services that the suite controls. The
// informers are started by setup.
func cacheOptions() cache.Options {
	options := certs.CacheOptions(Name)
	options.ByObject[&corev1.Service{}] = cache.ByObject{
		Label:     bootstrap.Managed(),
		Transform: stripService,
	}
	return options
}

// stripService keeps what says which Pods a Service selects.
func stripService(object any) (any, error) {
	service, ok := object.(*corev1.Service)
	if !ok {
		return bootstrap.StripManagedFields(object)
	}
	service.ManagedFields, service.Annotations = nil, nil
	service.Spec = corev1.ServiceSpec{Selector: service.Spec.Selector, Type: service.Spec.Type}
	service.Status = corev1.ServiceStatus{}
	return service, nil
}

// setup starts the caches that the webhooks read, and registers these. Pods outside the given namespaces are left
// alone, as lifecycle-controller leaves them; no namespaces means all.
func (f *flags) setup(ctx context.Context, mgr ctrl.Manager, kept certificate, only []string) error {
	namespaces := &metav1.PartialObjectMetadata{}
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	cached := []client.Object{namespaces}
	evictions, err := bootstrap.Offers(mgr, lifecyclev1alpha1.SchemeGroupVersion.WithKind("Eviction"))
	if err != nil {
		return err
	}
	pods := &podMutator{evictions: evictions}
	if f.announceServices {
		cached = append(cached, &corev1.Service{})
		pods.services = mgr.GetCache()
	}
	for _, kind := range cached {
		if _, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watching %T: %w", kind, err)
		}
	}
	if err := pods.decorations.watch(ctx, mgr); err != nil {
		return err
	}
	if err := registerMetrics(kept.NotAfter); err != nil {
		return err
	}
	detector, err := detect.New(mgr.GetConfig(), clock.RealClock{},
		revision.Capabilities{Restart: f.restart, ImagesOnly: f.compatibility == bootstrap.KuperatorV07})
	if err != nil {
		return err
	}
	removing := &remover{policy: f.removal, namespaces: mgr.GetCache(), live: mgr.GetAPIReader(), writer: mgr.GetClient(),
		clock: clock.RealClock{}, refusals: newRefusals(clock.RealClock{})}
	for path, handle := range handlers(pods, removing, f.forecaster(detector.Capabilities)) {
		if slices.Contains([]string{pathMutatePods, pathDecoratePods, pathDeletePods, pathEvictPods}, path) {
			handle = within(only, handle)
		}
		// The manager runs its webhook server only if it was asked for it.
		mgr.GetWebhookServer().Register(path,
			&admission.Webhook{Handler: counted(path, handle), LogConstructor: requestLogger})
	}
	return nil
}

// within admits what is in none of the namespaces as it is; no namespaces means all.
func within(namespaces []string, handle admission.HandlerFunc) admission.HandlerFunc {
	if len(namespaces) == 0 {
		return handle
	}
	return func(ctx context.Context, request admission.Request) admission.Response {
		if !slices.Contains(namespaces, request.Namespace) {
			return admission.Allowed("")
		}
		return handle(ctx, request)
	}
}

func (f *flags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.bindAddress, "webhook-bind-address", "", "Address that the webhooks listen on. Empty: all addresses.")
	fs.IntVar(&f.port, "webhook-port", crwebhook.DefaultPort, "Port that the webhooks listen on.")
	fs.StringVar(&f.advertise, "advertise-url", "",
		"URL, https://host:port, at which the API server reaches this process if it runs outside the cluster. "+
			"Empty: the Service "+Name+".")
	fs.DurationVar(&f.certLifetime, "webhook-cert-lifetime", 90*24*time.Hour,
		"Validity of a serving certificate, which is renewed after two thirds of it.")
	fs.DurationVar(&f.certSettle, "webhook-cert-settle", time.Minute,
		"Time between the publication of a new certificate authority and the use of its certificates, "+
			"so that all API servers know it.")
	fs.StringVar(&f.certDir, "webhook-cert-dir", "",
		"Directory with tls.crt and tls.key to serve, reloaded when they change. "+
			"The program that maintains them, such as cert-manager, must also set caBundle in the webhook configurations. "+
			"Empty: webhook-server issues its own certificates.")
	fs.BoolVar(&f.removal.Graceful, "graceful-deletion", false,
		"Refuse to delete and evict managed Pods until they are out of service. The label "+podops.GracefulDeletionLabel+
			" of a Namespace or a Pod overrides it.")
	fs.StringSliceVar(&f.removal.UndelayedUsers, "undelayed-users", undelayedUsers,
		"Comma-separated users whose deletions and evictions are never refused.")
	fs.StringSliceVar(&f.removal.UndelayedGroups, "undelayed-groups", undelayedGroups,
		"Comma-separated groups whose deletions and evictions are never refused.")
	fs.BoolVar(&f.announceServices, "announce-services", false,
		"Add the expected finalizers of the Services that select a new managed Pod. Requires resourceconsist-controller, "+
			"without which these Pods never count as serving.")
	f.restart = revision.DefaultRestartAnnotations
	f.compatibility.AddTo(fs, "Only what is announced with a changed template is another: what becomes of the Pods then.")
	fs.Var(&f.restart, revision.RestartAnnotationsFlag, revision.RestartAnnotationsUsage)
}

// validate checks the flags and parses the URL.
func (f *flags) validate() error {
	if f.bindAddress != "" && net.ParseIP(f.bindAddress) == nil {
		return fmt.Errorf("--webhook-bind-address is %q: give an IP address, or leave it out for all", f.bindAddress)
	}
	if f.port < 1 || f.port > 65535 {
		return fmt.Errorf("--webhook-port is %d: give 1 to 65535", f.port)
	}
	if f.certSettle < shortestSettle {
		return fmt.Errorf("--webhook-cert-settle is %s: give at least %s", f.certSettle, shortestSettle)
	}
	// A third of the life is left when a rotation begins; the rotation must end well within it.
	if f.certLifetime < 6*f.certSettle {
		return fmt.Errorf("--webhook-cert-lifetime is %s: give at least six times --webhook-cert-settle (%s)",
			f.certLifetime, f.certSettle)
	}
	if f.advertise == "" {
		return nil
	}
	u, err := url.Parse(f.advertise)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		(u.Path != "" && u.Path != "/") {
		return fmt.Errorf("--advertise-url is %q: give https://host:port and nothing after it", f.advertise)
	}
	f.advertiseURL = u
	return nil
}
