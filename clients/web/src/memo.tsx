/** Components that render only when their facts change, so that tokens do not re-render a long answer. */

import { Component, type ComponentType, type VNode } from "preact";

export function memo<Props extends object>(
  Inner: ComponentType<Props>,
  facts: (props: Props) => unknown[],
): ComponentType<Props> {
  return class extends Component<Props> {
    override shouldComponentUpdate(next: Props): boolean {
      const before = facts(this.props as Props);
      return facts(next).some((fact, index) => fact !== before[index]);
    }

    override render(): VNode {
      return <Inner {...(this.props as Props)} />;
    }
  };
}
