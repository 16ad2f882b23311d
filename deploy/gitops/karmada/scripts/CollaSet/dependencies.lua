-- ConfigMaps, Secrets, claims and the ServiceAccount that Pods need travel with their CollaSet.
local kube = require("kube")
function GetDependencies(desiredObj)
  return kube.getPodDependencies(desiredObj.spec.template, desiredObj.metadata.namespace)
end
