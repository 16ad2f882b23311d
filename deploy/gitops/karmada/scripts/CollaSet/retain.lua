-- A member's autoscaler keeps its number, where Karmada is told so by its label.
function Retain(desiredObj, observedObj)
  if (desiredObj.metadata.labels or {})["resourcetemplate.karmada.io/retain-replicas"] == "true" then
    desiredObj.spec.replicas = observedObj.spec.replicas
  end
  return desiredObj
end
