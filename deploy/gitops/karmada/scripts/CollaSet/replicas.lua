-- How many Pods there are to divide among clusters, and what each needs.
local kube = require("kube")
function GetReplicas(obj)
  return obj.spec.replicas or 0, kube.accuratePodRequirements(obj.spec.template)
end
