-- Make every Pod anew, within the CollaSet's update strategy and the rules about its Pods.
local template = obj.spec.template
template.metadata = template.metadata or {}
template.metadata.annotations = template.metadata.annotations or {}
template.metadata.annotations["kubectl.kubernetes.io/restartedAt"] = os.date("!%Y-%m-%dT%XZ")
return obj
