package api

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"kusionstack.io/kuperator/internal/revision"
)

// specs are Pods that leave open whatever can be left open, together with a part of every kind that Pods are made of.
var specs = map[string]string{
	"everything": `
automountServiceAccountToken: false
serviceAccountName: me
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}
    preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: Exists}]}}]
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchExpressions: [{key: a, operator: Exists}]}}]
    preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: zone, labelSelector: {matchLabels: {a: b}}}}]
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchLabels: {a: b}}}]
dnsConfig: {nameservers: [1.1.1.1], options: [{name: ndots, value: "2"}]}
hostAliases: [{ip: 1.1.1.1, hostnames: [a]}]
imagePullSecrets: [{name: registry}]
os: {name: linux}
readinessGates: [{conditionType: example.com/gate}]
schedulingGates: [{name: example.com/gate}]
resourceClaims: [{name: gpu, resourceClaimName: gpu}]
securityContext:
  sysctls: [{name: kernel.shm_rmid_forced, value: "1"}]
  seLinuxOptions: {level: "s0:c1"}
  seccompProfile: {type: RuntimeDefault}
  appArmorProfile: {type: RuntimeDefault}
tolerations: [{key: a, operator: Exists}]
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {a: b}}}]
initContainers:
- name: setup
  image: setup
  resources: {limits: {cpu: 0.1}}
- name: mesh
  image: mesh:latest
  restartPolicy: Always
  ports: [{containerPort: 15000}]
  livenessProbe: {grpc: {port: 1}}
  startupProbe: {tcpSocket: {port: 1}}
containers:
- name: app
  image: app:v1
  env:
  - {name: B, value: b}
  - {name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
  - {name: D, valueFrom: {configMapKeyRef: {name: c, key: d}}}
  - {name: E, valueFrom: {secretKeyRef: {name: c, key: d}}}
  - {name: F, valueFrom: {fileKeyRef: {volumeName: empty, path: f, key: d}}}
  envFrom: [{configMapRef: {name: c}}, {secretRef: {name: c}}]
  ports: [{containerPort: 80}]
  livenessProbe: {exec: {command: [a]}}
  readinessProbe: {httpGet: {port: 80, httpHeaders: [{name: a, value: b}]}}
  lifecycle: {postStart: {httpGet: {port: 80}}, preStop: {sleep: {seconds: 1}}}
  resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]
  resources: {limits: {cpu: 1, memory: 1.5e9}, requests: {memory: 1Gi}, claims: [{name: gpu}]}
  securityContext: {capabilities: {add: [A], drop: [ALL]}}
  restartPolicy: Never
  restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]
  volumeMounts: [{name: empty, mountPath: /empty}]
  volumeDevices: [{name: claim, devicePath: /dev/x}]
volumes:
- {name: nothing}
- {name: empty, emptyDir: {sizeLimit: 1.5e9}}
- {name: path, hostPath: {path: /a}}
- {name: gce, gcePersistentDisk: {pdName: a}}
- {name: aws, awsElasticBlockStore: {volumeID: a}}
- {name: secret, secret: {secretName: a, items: [{key: a, path: a}]}}
- {name: nfs, nfs: {server: a, path: /a}}
- {name: iscsi, iscsi: {targetPortal: "1.1.1.1:3260", iqn: iqn.2001-04.com.example:a, lun: 0}}
- {name: glusterfs, glusterfs: {endpoints: a, path: a}}
- {name: claim, persistentVolumeClaim: {claimName: a}}
- {name: rbd, rbd: {monitors: [a], image: a}}
- {name: flex, flexVolume: {driver: example.com/a, secretRef: {name: a}}}
- {name: cinder, cinder: {volumeID: a}}
- {name: ceph, cephfs: {monitors: [a]}}
- {name: flocker, flocker: {datasetName: a}}
- {name: down, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}, {path: b, resourceFieldRef: {containerName: app, resource: limits.cpu}}]}}
- {name: fc, fc: {targetWWNs: [a], lun: 0}}
- {name: file, azureFile: {secretName: a, shareName: a}}
- {name: map, configMap: {name: a}}
- {name: vsphere, vsphereVolume: {volumePath: a}}
- {name: quobyte, quobyte: {registry: "a:1", volume: a}}
- {name: azure, azureDisk: {diskName: a, diskURI: "https://blob/a.vhd"}}
- {name: photon, photonPersistentDisk: {pdID: a}}
- name: projected
  projected:
    sources:
    - secret: {name: a}
    - configMap: {name: a}
    - downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}
    - serviceAccountToken: {path: token}
- {name: portworx, portworxVolume: {volumeID: a}}
- {name: scale, scaleIO: {gateway: a, system: a, volumeName: a, secretRef: {name: a}}}
- {name: storageos, storageos: {volumeName: a}}
- {name: csi, csi: {driver: example.com}}
- {name: ephemeral, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], dataSource: {kind: PersistentVolumeClaim, name: a},
    dataSourceRef: {kind: PersistentVolumeClaim, name: a}, resources: {requests: {storage: 1.5e9}}}}}}
- {name: image, image: {reference: a}}
- {name: repo, gitRepo: {repository: "https://a/b.git"}}
`,
	"the host's network": `
hostNetwork: true
automountServiceAccountToken: false
initContainers: [{name: mesh, image: "r:5000/mesh", restartPolicy: Always, ports: [{containerPort: 81, protocol: UDP}]}]
containers: [{name: app, image: "app@sha256:0123456789012345678901234567890123456789012345678901234567890123", ports: [{containerPort: 80}]}]
`,
	"resources of the whole, which follow from the containers": `
automountServiceAccountToken: false
serviceAccount: me
resources: {limits: {cpu: 4, memory: 4Gi}}
initContainers:
- {name: setup, image: "a:1", resources: {requests: {cpu: 3}}}
- {name: mesh, image: "a:1", restartPolicy: Always, resources: {limits: {cpu: 0.5}}}
containers:
- {name: app, image: "a:1", resources: {requests: {cpu: 1}, limits: {hugepages-2Mi: 2Mi, memory: 1Gi}}}
- {name: side, image: "a:1"}
`,
	"resources of the whole, which follow from nothing": `
automountServiceAccountToken: false
resources: {limits: {cpu: 4, memory: 4Gi}, requests: {cpu: 1}}
containers: [{name: app, image: "a:1"}]
`,
	"Windows": `
automountServiceAccountToken: false
os: {name: windows}
securityContext: {windowsOptions: {runAsUserName: a}}
containers: [{name: app, image: "a:1", securityContext: {windowsOptions: {runAsUserName: a}}}]
`,
}

// inNoTemplate are the kinds of parts that no Pod of specs has, and why.
var inNoTemplate = map[string]string{
	"EphemeralContainer":           "no template may have one",
	"EphemeralContainerCommon":     "no template may have one",
	"ClusterTrustBundleProjection": "the API server drops it unless a feature is on",
	"PodCertificateProjection":     "the API server drops it unless a feature is on",
	"PodSchedulingGroup":           "likewise",
	"EvictionResponder":            "likewise",
}

func templateOf(t *testing.T, spec any) *revision.Data {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
		"spec": spec})
	require.NoError(t, err)
	var template map[string]any
	require.NoError(t, json.Unmarshal(raw, &template))
	raw, err = revision.Render(map[string]any{"template": template})
	require.NoError(t, err)
	data, err := revision.Parse(raw)
	require.NoError(t, err)
	return data
}

// TestWhatTheAPIServerFillsInIsNoOtherTemplate fails where a Kubernetes has a default that internal/revision does not
// know.
func TestWhatTheAPIServerFillsInIsNoOtherTemplate(t *testing.T) {
	if before(t, 36) {
		t.Skip("this API server does not know all of the fields")
	}
	namespace := newNamespace(t)
	for name, text := range specs {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			require.NoError(t, yaml.UnmarshalStrict([]byte(text), &pod.Spec))
			var sent map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(text), &sent))
			pod.Name, pod.Namespace = "web", namespace
			require.NoError(t, cluster.Create(t.Context(), pod, client.DryRunAll))
			// What admission adds goes by the cluster.
			pod.Spec.Priority, pod.Spec.PreemptionPolicy = nil, nil
			pod.Spec.Tolerations = slices.DeleteFunc(pod.Spec.Tolerations, func(toleration corev1.Toleration) bool {
				return toleration.Key == corev1.TaintNodeNotReady || toleration.Key == corev1.TaintNodeUnreachable
			})
			one, other := templateOf(t, sent), templateOf(t, pod.Spec)
			if !one.Same(other) {
				change := revision.Explain(one, other, revision.Capabilities{})
				t.Errorf("it forces %v, and: %s", change.Forcing, cmp.Diff(one.Template(), other.Template()))
			}
		})
	}
}

// TestThePodsHaveEveryKindOfPart holds specs to their promise.
func TestThePodsHaveEveryKindOfPart(t *testing.T) {
	wanted, seen := map[string]bool{}, map[string]bool{}
	var kinds func(reflect.Type)
	kinds = func(of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			kinds(of.Elem())
		case reflect.Struct:
			if !strings.HasSuffix(of.PkgPath(), "core/v1") || wanted[of.Name()] {
				return
			}
			wanted[of.Name()] = true
			for i := range of.NumField() {
				kinds(of.Field(i).Type)
			}
		default:
		}
	}
	kinds(reflect.TypeFor[corev1.PodSpec]())
	var look func(reflect.Value)
	look = func(value reflect.Value) {
		switch value.Kind() {
		case reflect.Pointer:
			if !value.IsNil() {
				look(value.Elem())
			}
		case reflect.Slice:
			for i := range value.Len() {
				look(value.Index(i))
			}
		case reflect.Struct:
			if strings.HasSuffix(value.Type().PkgPath(), "core/v1") {
				seen[value.Type().Name()] = true
				for i := range value.NumField() {
					look(value.Field(i))
				}
			}
		default:
		}
	}
	for _, text := range specs {
		spec := corev1.PodSpec{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), &spec))
		look(reflect.ValueOf(spec))
	}
	for _, kind := range slices.Sorted(maps.Keys(wanted)) {
		assert.Equal(t, inNoTemplate[kind] == "", seen[kind], kind)
	}
}
