// Package decoration renders PodDecorations into Pods: containers, volumes, labels and other settings that are added to
// the Pods of any workload. Several programs make Pods, so it is pure, and each of them makes the same Pod.
//
// It works on JSON, never on typed Pods: fields that this version does not know stay as they are. What no decoration
// names is not touched.
//
// Names and meanings are those of Kuperator v0.7.4, but for these of its defects:
//
//   - A container replaces that of the same name, in its place. Kuperator adds a second one, and the Pod is invalid.
//   - Primary containers are those of the workload itself, never those that another decoration has added.
//   - Mounts are told apart by their paths, not by the names of their volumes.
//   - Tolerations are told apart by key, effect and operator, not by key alone.
//   - runtimeClassName is applied.
package decoration
